# SPDX-License-Identifier: Apache-2.0
"""Behaviour, text, load file and wheel of the stand-in engine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rackwell_lab_engine import behaviour, caches, text
from rackwell_lab_engine.load import LoadFile, busy_watts

ENGINE = Path(__file__).parents[2] / "lab" / "engine"


def test_the_environment_lies_over_the_file(tmp_path: Path) -> None:
    (tmp_path / behaviour.FILE).write_text(
        '{"load_seconds": 9, "step_ms": {"16": 4, "1": 2}, "faults": {"output": "short"}}'
    )
    read = behaviour.read(tmp_path, {behaviour.VARIABLE: '{"load_seconds": 1, "faults": {"never_ready": "closed"}}'})
    assert read.load_seconds == 1
    assert (read.faults.output, read.faults.never_ready) == ("short", "closed")
    assert behaviour.interpolate(read.step_ms, 1) == 2
    assert behaviour.interpolate(read.step_ms, 8) == pytest.approx(2 + 2 * 7 / 15)
    assert behaviour.interpolate(read.step_ms, 99) == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"oops": 1}', "unknown settings: oops"),
        ('{"faults": {"oops": 1}}', "faults.oops"),
        ('{"faults": {"never_ready": true}}', "never_ready"),
        ('{"faults": {"output": "x"}}', "output"),
        ('{"step_ms": {}}', "step_ms"),
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, data: str, said: str) -> None:
    with pytest.raises(behaviour.BehaviourError, match=said):
        behaviour.read(tmp_path, {behaviour.VARIABLE: data})


def test_speed_follows_flags_and_source(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("patched")
    rule = {"flags": {"moe-runner-backend": "cutlass"}, "source_contains": {"x.py": "patched"}, "speed": 3}
    adjusted = behaviour.Behaviour(speed=2, adjust=(rule,))
    assert behaviour.speed_of(adjusted, {"moe_runner_backend": "cutlass"}, tmp_path) == 6
    assert behaviour.speed_of(adjusted, {"moe_runner_backend": "auto"}, tmp_path) == 2
    (tmp_path / "x.py").write_text("plain")
    assert behaviour.speed_of(adjusted, {"moe_runner_backend": "cutlass"}, tmp_path) == 2


def test_known_answers_and_deterministic_text(tmp_path: Path) -> None:
    france = "The capital of France is"
    assert text.generate(france, 16, tmp_path, ignore_eos=False, fault="") == ([" Paris", "."], True)
    tokens, ended = text.generate(france, 16, tmp_path, ignore_eos=True, fault="")
    assert (len(tokens), tokens[0], ended) == (16, " Paris", False)
    one, two = (text.generate("hello", 50, tmp_path, ignore_eos=False, fault="")[0] for _ in range(2))
    assert one == two
    assert len(one) == 50
    assert text.generate("hallo", 50, tmp_path, ignore_eos=False, fault="")[0] != one
    assert text.generate(france, 4, tmp_path, ignore_eos=False, fault="garbage")[0] == ["!"] * 4
    assert " Paris" not in text.generate(france, 4, tmp_path, ignore_eos=False, fault="wrong")[0]
    assert text.generate("x", 4, tmp_path, ignore_eos=True, fault="short") == (
        text.generate("x", 2, tmp_path, ignore_eos=True, fault="")[0],
        True,
    )


def test_the_text_is_made_of_the_models_own_words(tmp_path: Path) -> None:
    words = [f"{chr(97 + n)}word" for n in range(20)]
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {f"\u0120{w}": n for n, w in enumerate(words)}}})
    )
    tokens, _ = text.generate("x", 30, tmp_path, ignore_eos=True, fault="")
    assert {token.strip() for token in tokens} <= set(words)
    assert all(token.startswith(" ") for token in tokens)


def test_the_load_file_goes_on_counting(tmp_path: Path) -> None:
    path = tmp_path / "load"
    first = LoadFile(path, period=0)
    first.step(2.0, 50.0)
    _when, _use, joules, memory = (float(part) for part in path.read_text().split())
    assert joules == pytest.approx(2.0 * 0.5 * busy_watts(tmp_path / "none"))
    assert memory > 0
    second = LoadFile(path, period=0)
    second.step(2.0, 50.0)
    assert float(path.read_text().split()[2]) == pytest.approx(2 * joules)
    assert [p.name for p in tmp_path.iterdir()] == ["load"]


def test_the_wheel_is_the_same_each_time_and_its_record_is_right(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        command = [sys.executable, str(ENGINE / "build_wheel.py"), str(tmp_path / name)]
        wheel = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        digests.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    from wheel.wheelfile import WheelFile

    with WheelFile(wheel) as archive:
        names = [info.filename for info in archive.infolist()]
        for member in names:
            archive.read(member)  # checks each member against RECORD
    assert "rackwell_lab_engine/main.py" in names
    assert zipfile.ZipFile(wheel).testzip() is None


def test_the_patch_makes_the_entry_point_call_the_stand_in() -> None:
    patch = (ENGINE / "patches" / "lab-engine" / "0.5.9.patch").read_text().splitlines()
    assert patch[:2] == ["--- a/sglang/launch_server.py", "+++ b/sglang/launch_server.py"]
    after = "\n".join(line[1:] for line in patch[3:] if line[:1] in ("+", " "))
    code = compile(after, "launch_server.py", "exec")
    seen: list[list[str]] = []
    import rackwell_lab_engine.main as target

    original, arguments = target.main, sys.argv
    target.main = lambda argv: seen.append(list(argv)) or 5  # type: ignore[func-returns-value]
    sys.argv = ["launch_server.py", "--x"]
    try:
        with pytest.raises(SystemExit) as ended:
            exec(code, {"__name__": "__main__"})
    finally:
        target.main, sys.argv = original, arguments
    assert (ended.value.code, seen) == (5, [["--x"]])


def test_the_package_needs_nothing_but_python() -> None:
    code = "import sys, rackwell_lab_engine.main; print([getattr(m, '__file__', '') for m in sys.modules.values()])"
    environment = {**os.environ, "PYTHONPATH": str(ENGINE)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "site-packages" not in done.stdout
    assert importlib.util.find_spec("rackwell_lab_engine") is not None


def test_what_was_compiled_once_is_found_the_next_time(tmp_path: Path) -> None:
    environment = {"FLASHINFER_WORKSPACE_BASE": str(tmp_path / "a"), "SGLANG_CACHE_DIR": str(tmp_path / "b")}
    assert caches.stage(environment) == "JIT cache: 0 of 2 files found, 2 compiled"
    assert caches.stage(environment) == "JIT cache: 2 of 2 files found, 0 compiled"
    assert caches.stage({}) == "JIT cache: 0 of 0 files found, 0 compiled"
    (tmp_path / "file").write_text("no directory")
    assert caches.stage({"SGLANG_CACHE_DIR": str(tmp_path / "file")}).endswith("1 compiled")
