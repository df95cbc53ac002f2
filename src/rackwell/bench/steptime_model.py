# SPDX-License-Identifier: Apache-2.0
"""What a decode step of a model reads from memory: reckoned from its shape, never measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rackwell.lint.facts import Attention, BytesPerWeight, DecodeShape, Indexer

#: bytes of a value: 4 bits and an 8-bit scale for each 16 (NVFP4) or 32 (MXFP4); the scales of fp8 are few
_BYTES = {"nvfp4": 0.5625, "fp4": 0.5625, "mxfp4": 0.53125, "fp8": 1.0, "int4": 0.53125, "int8": 1.0, "awq": 0.53125}


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of a model by what becomes of them under tensor parallelism.

    Attributes:
        expert: of one routed expert, over all layers that have them. split: read whole by all ranks together, a part
            each. whole: read whole by each rank (projections to latents, the indexer, the router). lookup: the
            embedding, of which a step reads a row for each token.
    """

    expert: int
    split: int
    whole: int
    lookup: int

    def total(self, shape: DecodeShape) -> int:
        """All parameters."""
        return self.expert * shape.experts + self.split + self.whole + self.lookup

    def active(self, shape: DecodeShape) -> int:
        """Those that a token needs."""
        return self.expert * shape.experts_per_token + self.split + self.whole


def weights(shape: DecodeShape) -> Weights:
    """Count them."""
    at, hidden = shape.attention, shape.hidden
    if at.kv_lora is not None:
        width = at.rope + at.nope
        whole = hidden * (at.kv_lora + at.rope) + (hidden * at.q_lora if at.q_lora else 0)
        split = (at.q_lora or hidden) * at.heads * width
        split += at.kv_lora * at.heads * (at.nope + at.value) + at.heads * at.value * hidden
    else:
        whole = 0
        split = hidden * at.head_dim * (2 * at.heads + 2 * (at.kv_heads or at.heads))
    if shape.indexer:
        index = shape.indexer
        whole += (at.q_lora or hidden) * index.heads * index.dim + hidden * (index.dim + index.heads)
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    mlp = 3 * hidden * shape.expert_intermediate
    dense = (shape.layers - sparse) * 3 * hidden * shape.dense_intermediate
    head = hidden * shape.vocab
    return Weights(
        expert=sparse * mlp,
        split=shape.layers * split + dense + sparse * shape.shared_experts * mlp + head,
        whole=shape.layers * whole + sparse * hidden * shape.experts,
        lookup=head,
    )


def experts_touched(shape: DecodeShape, batch: float) -> float:
    """Distinct experts of a layer that `batch` tokens need, were each as likely as the next."""
    if not shape.experts:
        return 0.0
    return float(shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** batch))


def weight_bytes(shape: DecodeShape, batch: float, ranks: int) -> float:
    """Bytes of weights that one rank reads in a step of `batch` tokens."""
    counted, each = weights(shape), shape.bytes_per_weight
    experts = counted.expert * experts_touched(shape, batch) * each.experts
    return (experts + counted.split * each.other) / ranks + counted.whole * each.other


def kv_bytes(shape: DecodeShape, batch: float, context: float, ranks: int, each: float, *, dense: bool) -> float:
    """Bytes of the KV cache that one rank reads in a step. context: tokens of a stream; each: bytes of a value."""
    at = shape.attention
    seen = context if dense or not shape.indexer else min(context, float(shape.indexer.topk))
    if at.kv_lora is None:
        shared = min(ranks, at.kv_heads or at.heads)
        return batch * shape.layers * seen * 2 * (at.kv_heads or at.heads) * at.head_dim * each / shared
    # one latent for all heads: each rank keeps and reads all of it
    found = batch * shape.layers * seen * (at.kv_lora + at.rope) * each
    if shape.indexer and not dense:
        found += batch * shape.layers * context * shape.indexer.dim  # its keys are fp8
    return found


def from_config(config: Mapping[str, Any]) -> DecodeShape | None:
    """The shape that a model's ``config.json`` says; None when it does not say it."""
    inner = config.get("text_config")
    c: Mapping[str, Any] = inner if isinstance(inner, dict) else config
    try:
        experts = int(c.get("n_routed_experts") or c.get("num_experts") or c.get("num_local_experts") or 0)
        layers = int(c["num_hidden_layers"])
        heads = int(c["num_attention_heads"])
        return DecodeShape(
            layers=layers,
            hidden=int(c["hidden_size"]),
            vocab=int(c["vocab_size"]),
            attention=_attention(c, heads),
            indexer=Indexer(heads=c["index_n_heads"], dim=c["index_head_dim"], topk=c["index_topk"])
            if c.get("index_topk")
            else None,
            dense_layers=int(c.get("first_k_dense_replace") or 0) if experts else layers,
            dense_intermediate=int(c["intermediate_size"]),
            experts=experts,
            experts_per_token=int(c.get("num_experts_per_tok") or 0),
            shared_experts=int(c.get("n_shared_experts") or 0),
            expert_intermediate=int(c.get("moe_intermediate_size") or c["intermediate_size"]) if experts else 0,
            bytes_per_weight=_bytes(config),
            source="the model's config.json",
        )
    except (KeyError, TypeError, ValueError):
        return None


def _attention(c: Mapping[str, Any], heads: int) -> Attention:
    if c.get("kv_lora_rank"):
        return Attention(
            heads=heads,
            q_lora=c.get("q_lora_rank"),
            kv_lora=c["kv_lora_rank"],
            rope=c["qk_rope_head_dim"],
            nope=c["qk_nope_head_dim"],
            value=c["v_head_dim"],
        )
    return Attention(
        heads=heads,
        kv_heads=int(c.get("num_key_value_heads") or heads),
        head_dim=int(c.get("head_dim") or c["hidden_size"] // heads),
    )


def _bytes(config: Mapping[str, Any]) -> BytesPerWeight:
    """From ``quantization_config``; what it ignores is taken to be 16 bits."""
    found = config.get("quantization_config") or {}
    method = " ".join(str(found.get(key) or "") for key in ("quant_algo", "fmt", "quant_method", "format")).lower()
    each = next((size for name, size in _BYTES.items() if name in method), 2.0)
    if each == 2.0 and found.get("bits"):
        each = float(found["bits"]) / 8
    ignored = [str(name) for key in ("ignore", "exclude_modules", "ignored_layers") for name in found.get(key) or []]
    rest = 2.0 if any("attn" in name for name in ignored) else each
    return BytesPerWeight(experts=each, other=rest)
