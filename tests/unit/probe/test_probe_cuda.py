# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackwell.probe import cuda_check

Order = Callable[..., None]


def check(root: Path, timeout: float = 60, gpus: int | None = None) -> dict[str, Any]:
    return cuda_check.check(timeout, gpus, root)


def codes(report: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in report["problems"]]


def test_healthy_gpus_pass_every_step(root: Path) -> None:
    report = check(root, gpus=2)
    assert report["problems"] == []
    assert (report["schema"], report["verdict"]) == ("rackwell.cuda/1", "pass")
    assert (report["driver_version"], report["cuda_version"]) == ("595.58.03", "13.2")
    assert [step["step"] for step in report["steps"]] == ["load", "cuInit", "cuDeviceGetCount"]
    first = report["devices"][0]
    assert first["uuid"] == "GPU-01010101-0101-0101-0101-010101010101"
    assert (first["bus_id"], first["compute_capability"]) == ("0000:01:00.0", "12.0")
    assert len(first["steps"]) == 7
    assert all(step["ok"] for device in report["devices"] for step in device["steps"])


def test_cuinit_3_with_hmm_on(root: Path, fake_cuda: Order) -> None:
    (root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N")
    fake_cuda(errors={"cuInit": 3})
    report = check(root)
    assert codes(report) == ["cuda-failed"]
    assert report["problems"][0]["what"] == "cuInit failed: CUDA_ERROR_NOT_INITIALIZED (3)"
    assert "HMM is on" in report["problems"][0]["why"]
    assert "uvm_disable_hmm=1" in report["problems"][0]["fix"]
    assert report["steps"][-1]["error"]["code"] == 3


def test_a_hang_names_its_step(root: Path, fake_cuda: Order) -> None:
    fake_cuda(hang="cuInit")
    report = check(root, timeout=2)
    assert report["verdict"] == "fail"
    assert codes(report) == ["cuda-hang"]
    assert report["problems"][0]["what"].startswith("cuInit: did not return before the deadline")
    assert "Xid" in report["problems"][0]["fix"]
    assert "HMM" not in report["problems"][0]["why"]  # it is known to be off
    assert report["steps"][-1] == {**report["steps"][-1], "step": "cuInit", "ok": False}


def test_a_hang_on_one_gpu_names_that_gpu(root: Path, fake_cuda: Order) -> None:
    fake_cuda(hang="cuMemAlloc@1")
    report = check(root, timeout=2)
    assert codes(report) == ["cuda-hang"]
    assert "GPU 1 GPU-02020202" in report["problems"][0]["where"]
    assert report["problems"][0]["what"].startswith("GPU 1: allocate: did not return")
    assert all(step["ok"] for step in report["devices"][0]["steps"])


def test_a_gpu_that_fails_does_not_hide_the_next(root: Path, fake_cuda: Order) -> None:
    fake_cuda(errors={"cuMemAlloc@0": 2})
    report = check(root)
    assert codes(report) == ["cuda-failed"]
    assert "CUDA_ERROR_OUT_OF_MEMORY (2) from cuMemAlloc" in report["problems"][0]["what"]
    assert report["devices"][1]["steps"][-1] == {**report["devices"][1]["steps"][-1], "step": "free", "ok": True}


def test_wrong_data_is_found(root: Path, fake_cuda: Order) -> None:
    fake_cuda(readback={"1": "flip"})
    report = check(root)
    assert codes(report) == ["cuda-wrong-data"]
    assert "1 of 16777216 bytes are wrong, the first at offset 7" in report["problems"][0]["what"]
    assert "GPU 1" in report["problems"][0]["where"]


def test_a_crash_of_the_library_is_a_failure(root: Path, fake_cuda: Order) -> None:
    fake_cuda(crash="cuInit")
    assert codes(check(root)) == ["cuda-crash"]


def test_too_few_gpus(root: Path) -> None:
    report = check(root, gpus=8)
    assert codes(report) == ["gpu-count"]
    assert report["problems"][0]["what"] == "CUDA finds 2 GPUs, 8 are expected"
    assert "/dev/nvidia1" in report["problems"][0]["why"]
    assert "devN" in report["problems"][0]["fix"]


def test_a_gpu_without_an_answer_behind_its_node(root: Path, fake_cuda: Order) -> None:
    fake_cuda(gpus=1)
    report = check(root, gpus=2)
    assert codes(report) == ["gpu-count"]
    assert "failed" in report["problems"][0]["fix"]


def test_no_gpu_at_all_is_no_pass(root: Path, fake_cuda: Order) -> None:
    fake_cuda(gpus=0)
    assert codes(check(root)) == ["gpu-count"]


def test_nvml_that_refuses_the_module(root: Path, fake_nvml: Order) -> None:
    fake_nvml(init_error=18)
    report = check(root)
    assert codes(report) == ["driver-mismatch"]
    assert "nvidia_userspace_version" in report["problems"][0]["fix"]


def test_a_denied_node_is_a_problem_although_the_rest_works(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cuda_check.surroundings.os.access
    monkeypatch.setattr(
        cuda_check.surroundings.os, "access", lambda p, m, **kw: not str(p).endswith("nvidia1") and real(p, m, **kw)
    )
    report = check(root)
    assert codes(report) == ["device-node-denied"]
    assert "/dev/nvidia1,mode=0666" in report["problems"][0]["fix"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rackwell.probe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_line_json_is_one_object(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuInit": 100})
    done = run("cuda", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "fail"


def test_command_line_text_says_what_to_do(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuInit": 803})
    done = run("cuda")
    assert done.returncode == 1
    assert "(803)" in done.stdout
    assert "fix:" in done.stdout
    assert done.stdout.endswith("verdict: fail\n")


@pytest.mark.parametrize(
    "arguments", [["cuda", "--gpus", "0"], ["p2p", "--size", "x"], ["cuda", "--timeout", "-1"], [], ["nope"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2
