# SPDX-License-Identifier: Apache-2.0
"""The stand-in's command line comes from the source it finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from rackwell_lab_engine import flags, source


def test_every_form_of_definition_is_read(package: Path) -> None:
    parsed = flags.parse(
        package, ["--model", "/m", "--tp-size", "8", "--lora", "all", "q_proj", "--sampling", "pytorch"]
    )
    assert parsed["model_path"] == "/m"
    assert parsed["tp_size"] == 8
    assert parsed["moe_runner_backend"] == "triton"
    assert parsed["fraction"] == -1.5
    assert parsed["max_prefill_tokens"] == 16384, "a field without an option has its default"
    assert next(iter(parsed)) == "model_path", "in the order of the fields"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-flag", "7"], "error: unrecognized arguments: --no-such-flag 7"),
        (["--tp-size", "two"], "argument --tensor-parallel-size/--tp-size: invalid int value: 'two'"),
        (["--moe-runner-backend", "x"], "invalid choice: 'x' (choose from 'triton', 'flashinfer_cutlass')"),
        (["--draft", "x"], "'unquant'"),
        (["--tool", "x"], "'glm45', 'glm47'"),
        (["--lora", "x"], "'q_proj', 'all'"),
        (["--sampling", "x"], "'pytorch', 'flashinfer'"),
    ],
)
def test_wrong_usage_ends_with_2(
    package: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        flags.parse(package, ["--model-path", "/m", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: launch_server.py ")
    # Python 3.12 and later quote choices in another way
    assert said.replace("'", "") in error.replace("'", "")


def test_a_definition_of_an_unknown_form_is_not_skipped(package: Path) -> None:
    path = package / "srt" / "server_args.py"
    path.write_text(path.read_text().replace("choices=KINDS", "choices=compute_kinds()"))
    with pytest.raises(source.UnresolvableError, match="compute_kinds"):
        flags.build_parser(package)


def test_the_autotune_list_shows_whether_the_patch_is_there(package: Path) -> None:
    assert source.autotune_backends(package) == ["flashinfer_trtllm"]
    path = package / "srt" / "model_executor" / "model_runner.py"
    path.write_text(path.read_text().replace('# "flashinfer_cutlass"', '"flashinfer_cutlass"'))
    source.load.cache_clear()
    assert source.autotune_backends(package) == ["flashinfer_trtllm", "flashinfer_cutlass"]
