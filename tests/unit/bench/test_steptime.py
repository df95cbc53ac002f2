# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes: the arithmetic against what models say of themselves, and the story's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackwell import shipped
from rackwell.bench.result import BenchResult, Distribution, Latency, Series, ServerLoad, Throughput, Tokens, Topology
from rackwell.bench.steptime import StepBudget, explain, explain_or_why, text
from rackwell.bench.steptime_facts import between
from rackwell.bench.steptime_model import experts_touched, from_config, kv_bytes, weight_bytes, weights
from rackwell.lint.facts import DecodeShape, gpu_called, model_facts

from . import story_runs as story

CATALOG = shipped.catalog()
#: as published for zai-org/GLM-5-FP8, without what is not read here
GLM5 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "intermediate_size": 12288,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def shape(name: str) -> DecodeShape:
    return DecodeShape.model_validate(model_facts(CATALOG, [], name)["decode"])


def only(result: BenchResult, streams: int) -> BenchResult:
    return result.model_copy(update={"points": [p for p in result.points if p.concurrency == streams]})


def budget(result: BenchResult) -> StepBudget:
    found, why = explain_or_why(result)
    assert found, why
    return found[0]


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("GLM-5-NVFP4", 744e9, 40e9), ("glm-5-nvfp4-mtp", 744e9, 40e9), ("Kimi-K2-Thinking-NVFP4", 1.03e12, 32e9)],
)
def test_shapes_add_up_to_what_the_models_say(name: str, total: float, active: float) -> None:
    counted, of = weights(shape(name)), shape(name)
    assert counted.total(of) == pytest.approx(total, rel=0.01)
    assert counted.active(of) == pytest.approx(active, rel=0.03)


def test_a_config_gives_the_same_shape_as_the_catalogue() -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*", "lm_head"]}
    found = from_config({**GLM5, "quantization_config": quantised})
    assert found is not None
    assert found.model_copy(update={"source": ""}) == shape("GLM-5-NVFP4").model_copy(update={"source": ""})


def test_a_dense_model() -> None:
    found = from_config(LLAMA)
    assert found is not None
    assert weights(found).total(found) == pytest.approx(8.03e9, rel=0.001)
    assert weight_bytes(found, 7, 1) == pytest.approx(2 * (8.03e9 - 4096 * 128256), rel=0.001)
    # 8 heads of keys and values on 16 ranks: each keeps a whole one
    assert kv_bytes(found, 1, 100, 1, 2.0, dense=True) == 100 * 32 * 2 * 8 * 128 * 2
    assert kv_bytes(found, 1, 100, 16, 2.0, dense=True) == 100 * 32 * 2 * 128 * 2
    assert from_config({"hidden_size": 1}) is None


def test_a_latent_cache_is_read_by_every_rank() -> None:
    of = shape("GLM-5-NVFP4")
    once = kv_bytes(of, 1, 1000, 1, 1.0, dense=True)
    assert once == 1000 * 44928  # as the catalogue has it for the KV pool
    assert kv_bytes(of, 1, 1000, 8, 1.0, dense=True) == once
    # sparse attention: 2,048 positions, and the indexer's key of each
    assert kv_bytes(of, 1, 10000, 8, 1.0, dense=False) == 2048 * 44928 + 10000 * 78 * 128


def test_more_streams_touch_more_experts() -> None:
    of = shape("GLM-5-NVFP4")
    assert experts_touched(of, 1) == pytest.approx(8)
    assert experts_touched(of, 2) == pytest.approx(16 - 8 * 8 / 256)
    assert experts_touched(of, 1024) == pytest.approx(256)
    assert weight_bytes(of, 64, 8) > 4 * weight_bytes(of, 1, 8)


def test_the_catalogue_knows_the_gpus_by_what_the_driver_calls_them() -> None:
    for name, speed in (
        (story.GPU, 1597),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 1792),
        ("NVIDIA H200", 4800),
    ):
        found = gpu_called(CATALOG, [], name)
        assert found is not None
        assert found[1].gb_per_s == speed
    assert gpu_called(CATALOG, [], "NVIDIA A100") is None


def test_between_measured_sizes() -> None:
    known = {8192: 10.0, 32768: 40.0, 131072: 40.0}
    assert between(known, 16384) == pytest.approx(20.0)
    assert between(known, 100) == 10.0
    assert between(known, 65536) == pytest.approx(40.0)
    assert between(known, 262144) == pytest.approx(80.0)


def test_the_storys_single_stream() -> None:
    """About 11 tok/s: 156 allreduces a step bound it, and by how much hangs on their latency, which nobody measured."""
    found = budget(only(story.baseline(), 1))
    assert found.step_ms.value == pytest.approx(90.9, abs=0.05)
    assert found.allreduces == 156
    assert found.allreduce_bytes == 6144 * 2
    # 9.8 GB a GPU: 8 of 256 experts, and what is not quantised
    assert found.parts[0].ms == pytest.approx(9.82 / 1.597, rel=0.01)
    assert found.allreduce_us.known == "reported"
    assert found.parts[2].share == pytest.approx(0.025, abs=0.002)
    # so they explain it only if each takes 40 times what others saw
    assert found.allreduce_limit_us == pytest.approx(543, abs=2)
    said = " ".join(found.statements)
    assert "156 allreduces a step (2 in each of 78 layers), one after another, bound single-stream decoding" in said
    assert "not measured here" in said
    assert "To explain all that memory does not, each would have to take 543 us." in said
    assert "91 % of the step is neither" in said


@pytest.mark.parametrize(("us", "share", "gain"), [(40.0, 0.069, "+3.6%"), (250.0, 0.43, "+27.3%")])
def test_a_measured_latency_wins(us: float, share: float, gain: str) -> None:
    result = only(story.baseline(), 1).model_copy(update={"topology": Topology(allreduce_us={8192: us, 32768: us})})
    found = budget(result)
    part = found.parts[2]
    assert part.known == found.allreduce_us.known == "measured"
    assert part.share == pytest.approx(share, abs=0.005)
    assert sum(p.ms or 0 for p in found.parts) == pytest.approx(found.step_ms.value)
    assert found.floor_ms == pytest.approx(sum(p.ms or 0 for p in found.parts[:3]))
    assert any("twice as fast" in said and gain in said for said in found.statements)


def test_a_latency_over_more_gpus_than_serve_is_said() -> None:
    result = only(story.baseline(), 1).model_copy(update={"topology": Topology(allreduce_us={8192: 40.0})})
    assert budget(result).allreduce_us.source == "the newest `rackwell verify` of this machine"
    halved = {**story.BASE_FLAGS, "tp-size": 4}
    found = budget(result.model_copy(update={"profile_content": {**result.profile_content, "flags": halved}}))
    assert found.allreduce_us.source.endswith(", over all 8 GPUs")


def test_without_any_latency_the_range_is_told(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "mine.yml").write_text(
        "architecture: sm120\nmemory_gib: 95.6\nlinks: pcie\nsource: test\n"
        "memory:\n  - {match: RTX PRO 6000, gb_per_s: 1600, source: measured by me}\n"
    )
    found = explain(only(story.baseline(), 1), [tmp_path])
    assert found
    part = next(p for p in found[0].parts if p.name == "allreduce")
    assert part.ms is None
    assert found[0].floor_ms == pytest.approx(sum(p.ms or 0 for p in found[0].parts if p.name in ("weights", "kv")))
    said = " ".join(found[0].statements)
    assert "each microsecond that one takes costs 0.156 ms a step (0.2 %)" in said
    assert "it can be 543 us at most" in said
    assert any("`rackwell verify` does it" in line for line in found[0].assumptions)


def test_nothing_is_reckoned_beyond_what_others_measured() -> None:
    """Their largest size is 1 MiB; a step of 1,024 streams exchanges 12 MiB."""
    found = budget(only(story.autotune(), 1024))
    assert found.allreduce_us.known == "unknown"


def test_measured_steps_come_from_the_time_between_chunks() -> None:
    spread = Distribution(mean=25.0, min=20.0, max=90.0, p50=22.0, p90=30.0, p95=40.0, p99=80.0)
    point = story.point(
        64,
        8000.0,
        2700.0,
        latency=Latency(itl_ms=spread),
        tokens=Tokens(input=1, output_requested=1000, output_received=1000, output_chunks=1000),
        server_load=ServerLoad(running_mean=48.0),
    )
    found = budget(story.run("r", 1, [point], {**story.TUNED_FLAGS, "kv-cache-dtype": "bf16"}, []))
    assert (found.step_ms.value, found.step_ms.known) == (22.0, "measured")
    assert found.batch == 48.0
    assert any("2 bytes a value (--kv-cache-dtype bf16)" in line for line in found.assumptions)
    coarse = point.model_copy(
        update={"tokens": Tokens(input=1, output_requested=1000, output_received=1000, output_chunks=500)}
    )
    assert budget(story.run("r", 1, [coarse], story.TUNED_FLAGS, [])).step_ms.value == 11.0


def test_the_server_does_not_decode_more_than_it_lets_run() -> None:
    assert budget(only(story.baseline(), 256)).batch == 64


def test_a_floor_above_the_measurement_is_said() -> None:
    fast = story.point(1, 3000.0, 1000.0)
    found = budget(story.run("r", 1, [fast], story.BASE_FLAGS, []))
    assert found.floor_share > 1
    assert any("one of the assumptions does not hold" in said for said in found.statements)


def test_a_lower_power_limit() -> None:
    said = " ".join(budget(only(story.autotune(), 256)).statements)
    assert "A power limit down to 250 W would change nothing at this load" in said
    point = only(story.autotune(), 256).points[0]
    assert point.telemetry
    hot = [gpu.model_copy(update={"power_w": Series(mean=598.0, max=600.0)}) for gpu in point.telemetry.gpus]
    point = point.model_copy(update={"telemetry": point.telemetry.model_copy(update={"gpus": hot})})
    said = " ".join(budget(story.run("r", 1, [point], story.TUNED_FLAGS, [])).statements)
    assert "reach their limit of 600 W" in said


def test_one_gpu_reduces_nothing() -> None:
    point = story.point(4, 300.0, 100.0)
    result = story.run("r", 1, [point], {"tp-size": 1}, [])
    found = budget(result.model_copy(update={"profile_content": {"flags": {"tp-size": 1}, "model": {"config": LLAMA}}}))
    assert found.allreduces == 0
    assert [part.name for part in found.parts] == ["weights", "kv", "rest"]


def test_what_cannot_be_reckoned_says_why() -> None:
    base = only(story.baseline(), 1)

    def why(**update: object) -> str:
        found, reason = explain_or_why(base.model_copy(update=update))
        assert found is None
        return reason

    other = {"model": {"path": "/srv/models/other"}, "flags": story.BASE_FLAGS}
    assert "the shape of the model other is not known" in why(profile=None, profile_content=other)
    assert "memory bandwidth of (unknown)" in why(hardware=base.hardware.model_copy(update={"gpus": []}))
    assert "speculative" in why(profile_content={"flags": {**story.BASE_FLAGS, "speculative-algorithm": "NEXTN"}})
    assert "--enable-dp-attention" in why(profile_content={"flags": {**story.BASE_FLAGS, "enable-dp-attention": True}})
    toy = base.hardware.gpus[0].model_copy(update={"name": f"{story.GPU} (stand-in)"})
    assert "stand-ins" in why(hardware=base.hardware.model_copy(update={"gpus": [toy]}))
    invalid = [p.model_copy(update={"valid": False}) for p in base.points]
    assert why(points=invalid) == "no valid point tells how long a step took"
    rate = Throughput(
        duration_s=1, request_per_s=1, input_tok_per_s=1, output_tok_per_s=9, total_tok_per_s=9, accept_length=2.5
    )
    assert "speculative" in why(points=[base.points[0].model_copy(update={"throughput": rate})])


def test_the_text_names_every_part_and_assumption() -> None:
    found = explain(story.baseline())
    assert found
    told = text(found)
    assert "1 stream (1,024 in, 512 out): 90.9 ms a step" in told
    for word in ("reading weights", "KV cache", "156 allreduces", "the rest", "Assumed:", "data sheet", "744e9"):
        assert word in told
    assert max(map(len, told.splitlines())) <= 130
    assert [budget.as_dict()["load"]["concurrency"] for budget in found] == [1, 256, 1024]
