# SPDX-License-Identifier: Apache-2.0
"""Makes the toy model of tests/gpu/engine.py: GLM-5's architecture (GlmMoeDsaForCausalLM), small and random.

    RELEASE/env/bin/python toy_glm.py OUTDIR        beside it: model.py of tests/engine

As there, the last matrix makes each token follow one other, and the layers add so little to what they are given that
the greedy answer is known beforehand: an engine that gives another one computes garbage.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import model as toy

LAYERS, DENSE, EXPERTS, HIDDEN, HEADS = 4, 1, 16, 1024, 64
Q_RANK, KV_RANK, NOPE, ROPE, V = 512, 512, 192, 64, 256
INDEX_HEADS, INDEX_DIM = 32, 128
MOE, MLP = 512, 2048


def config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": [1],
        "pad_token_id": 1,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "ep_size": 1,
        "first_k_dense_replace": DENSE,
        "hidden_act": "silu",
        "head_dim": ROPE,
        "hidden_size": HIDDEN,
        "index_head_dim": INDEX_DIM,
        "index_n_heads": INDEX_HEADS,
        "index_topk": 2048,
        "indexer_rope_interleave": True,
        "initializer_range": 0.002,
        "intermediate_size": MLP,
        "kv_lora_rank": KV_RANK,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": MOE,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": HEADS,
        "num_experts_per_tok": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": HEADS,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": Q_RANK,
        "qk_head_dim": NOPE + ROPE,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "rms_norm_eps": 1e-05,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": V,
        "vocab_size": vocabulary,
    }


def weights(tokens, vocabulary: int):
    import torch

    torch.manual_seed(1)
    made = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        made[f"{name}.weight"] = (torch.randn(rows, columns) * 0.002).to(torch.bfloat16)

    def norm(name: str, size: int, bias: bool = False) -> None:
        made[f"{name}.weight"] = torch.ones(size, dtype=torch.bfloat16)
        if bias:
            made[f"{name}.bias"] = torch.zeros(size, dtype=torch.bfloat16)

    def mlp(name: str, inner: int) -> None:
        matrix(f"{name}.gate_proj", inner, HIDDEN)
        matrix(f"{name}.up_proj", inner, HIDDEN)
        matrix(f"{name}.down_proj", HIDDEN, inner)

    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        attention, indexer = f"{layer}.self_attn", f"{layer}.self_attn.indexer"
        norm(f"{layer}.input_layernorm", HIDDEN)
        norm(f"{layer}.post_attention_layernorm", HIDDEN)
        matrix(f"{attention}.q_a_proj", Q_RANK, HIDDEN)
        norm(f"{attention}.q_a_layernorm", Q_RANK)
        matrix(f"{attention}.q_b_proj", HEADS * (NOPE + ROPE), Q_RANK)
        matrix(f"{attention}.kv_a_proj_with_mqa", KV_RANK + ROPE, HIDDEN)
        norm(f"{attention}.kv_a_layernorm", KV_RANK)
        matrix(f"{attention}.kv_b_proj", HEADS * (NOPE + V), KV_RANK)
        matrix(f"{attention}.o_proj", HIDDEN, HEADS * V)
        matrix(f"{indexer}.wq_b", INDEX_HEADS * INDEX_DIM, Q_RANK)
        matrix(f"{indexer}.wk", INDEX_DIM, HIDDEN)
        norm(f"{indexer}.k_norm", INDEX_DIM, bias=True)
        matrix(f"{indexer}.weights_proj", INDEX_HEADS, HIDDEN)
        if number < DENSE:
            mlp(f"{layer}.mlp", MLP)
            continue
        matrix(f"{layer}.mlp.gate", EXPERTS, HIDDEN)
        made[f"{layer}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
        mlp(f"{layer}.mlp.shared_experts", MOE)
        for expert in range(EXPERTS):
            mlp(f"{layer}.mlp.experts.{expert}", MOE)
    norm("model.norm", HIDDEN)

    order = torch.randperm(vocabulary).tolist()
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    after.update(itertools.pairwise(tokens))
    embedding = torch.randn(vocabulary, HIDDEN)
    head = torch.zeros(vocabulary, HIDDEN)
    for before, token in after.items():
        head[token] += embedding[before] / HIDDEN**0.5
    made["model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    made["lm_head.weight"] = head.to(torch.bfloat16)
    return made


def main() -> int:
    from safetensors.torch import save_file

    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    words = toy.tokenizer()
    said = words(toy.PROMPT + toy.ANSWER, add_special_tokens=False)["input_ids"]
    asked = words(toy.PROMPT, add_special_tokens=False)["input_ids"]
    if said[: len(asked)] != asked or len(set(said)) != len(said):
        raise SystemExit(f"the prompt and its answer are no chain of tokens: {asked}, {said}")
    # a multiple of 64: shared out to the GPUs
    vocabulary = (len(words) + 63) // 64 * 64
    made = weights(said, vocabulary)
    save_file(made, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config(vocabulary), indent=1) + "\n")
    (out / "generation_config.json").write_text('{"bos_token_id": 0, "eos_token_id": [1], "pad_token_id": 1}\n')
    words.save_pretrained(out)
    size = sum(tensor.numel() for tensor in made.values())
    print(f"{size:,} parameters, {len(words)} tokens; {toy.PROMPT!r} -> {said[len(asked) :]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
