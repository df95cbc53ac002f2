# SPDX-License-Identifier: Apache-2.0
"""Makes the toy model of tests/engine: a Llama of random weights, and a byte-level BPE trained on a licence's text.

    RELEASE/env/bin/python model.py OUTDIR

Runs with the wheels of the release that is to serve it. The weights are random, but for the last matrix, which makes
each token follow one other: so the greedy answer to a prompt is known beforehand, on any machine, without any training.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

TEXT = Path("/usr/share/common-licenses/GPL-3")
PROMPT, ANSWER = "The capital of France is", " Paris."
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<think>", "</think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT.read_text(encoding="utf-8"), (PROMPT + ANSWER + "\n") * 200], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=_TEMPLATE
    )


def model(tokens, vocabulary: int):
    """A random Llama whose last matrix has, for each token, the embedding of the one that it follows."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    made = LlamaForCausalLM(config)
    order = torch.randperm(vocabulary).tolist()
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    after.update(itertools.pairwise(tokens))
    with torch.no_grad():
        embedding = torch.nn.functional.normalize(torch.randn(vocabulary, config.hidden_size), dim=1)
        made.model.embed_tokens.weight.copy_(embedding)
        made.lm_head.weight.zero_()
        for before, token in after.items():
            made.lm_head.weight[token] += embedding[before]
    return made.to(torch.bfloat16)


def main() -> int:
    out = Path(sys.argv[1])
    words = tokenizer()
    said = words(PROMPT + ANSWER, add_special_tokens=False)["input_ids"]
    asked = words(PROMPT, add_special_tokens=False)["input_ids"]
    if said[: len(asked)] != asked or len(set(said)) != len(said):
        raise SystemExit(f"the prompt and its answer are no chain of tokens: {asked}, {said}")
    made = model(said, len(words))
    made.save_pretrained(out)
    words.save_pretrained(out)
    size = sum(parameter.numel() for parameter in made.parameters())
    print(f"{size:,} parameters, {len(words)} tokens; {PROMPT!r} -> {said[len(asked) :]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
