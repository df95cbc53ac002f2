# SPDX-License-Identifier: Apache-2.0
"""CUDA's start and each GPU's own work, on the stand-in for the bindings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from rackwell.probe import cuda_check

Order = Callable[..., None]
SIZE = 1 << 16
PROOF = "fill, compare and prove both"


def measure(deadline: float = 60, findings: Collection[str] = ()) -> dict[str, Any]:
    return cuda_check.measure(deadline, findings, SIZE)


def failed(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The error of the one step that failed, with the step's name."""
    (entry,) = [entry for entry in steps if entry["error"]]
    return {"step": entry["step"], **entry["error"]}


def test_healthy_gpus_pass_every_step() -> None:
    found = measure()
    assert (found["state"], found["count"], found["cuda_version"]) == ("done", 2, "13.2")
    assert [entry["step"] for entry in found["steps"]] == ["load", "cuInit", "cuDeviceGetCount"]
    first = found["devices"][0]
    assert first["uuid"] == "GPU-01010101-0101-0101-0101-010101010101"
    assert (first["bus_id"], first["compute_capability"]) == ("0000:01:00.0", "12.0")
    for device in found["devices"]:
        assert device["kernel_verified"] is True
        assert device["steps"][-1]["step"] == "free"
        assert all(entry["ok"] and not entry["error"] for entry in device["steps"])


def test_a_code_of_the_driver_is_explained_by_what_was_seen(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuInit": 3})
    found = measure(findings={"hmm-on"})
    error = failed(found["steps"])
    assert (error["step"], error["code"], error["name"]) == ("cuInit", 3, "CUDA_ERROR_NOT_INITIALIZED")
    assert "HMM is on" in error["cause"]
    assert (found["count"], found["devices"]) == (None, [])


def test_a_hang_names_its_step(fake_cuda: Order) -> None:
    fake_cuda(hang="cuInit")
    found = measure(deadline=2, findings={"hmm-off"})
    assert found["state"] == "hung"
    error = failed(found["steps"])
    assert (error["step"], error["name"]) == ("cuInit", "HANG")
    assert "did not return before the deadline" in error["detail"]
    assert "HMM" not in error["cause"]


def test_a_hang_on_one_gpu_names_that_gpu(fake_cuda: Order) -> None:
    fake_cuda(hang="cuMemAlloc@1")
    first, second = measure(deadline=2)["devices"]
    assert all(entry["ok"] for entry in first["steps"])
    assert failed(second["steps"])["step"] == "allocate"
    assert second["kernel_verified"] is None


def test_a_gpu_that_fails_does_not_hide_the_next(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuMemAlloc@0": 2})
    first, second = measure()["devices"]
    assert failed(first["steps"])["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert second["kernel_verified"] is True


def test_wrong_data_of_the_copies_is_found(fake_cuda: Order) -> None:
    fake_cuda(readback={"1": "flip"})
    error = failed(measure()["devices"][1]["steps"])
    assert (error["step"], error["name"], error["code"]) == ("copy back and compare", "WRONG_DATA", None)
    assert f"1 of {SIZE} bytes are wrong, the first at offset 7" in error["detail"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("idle", "what a kernel wrote, from byte"),  # nothing was written
        ("wrong", "what a kernel wrote, from byte"),  # something else was written
        ("blind", "was to find the word"),  # whatever stands there is called right
    ],
)
def test_a_gpu_whose_kernels_do_not_work_is_found(fake_cuda: Order, kind: str, says: str) -> None:
    fake_cuda(kernels={"1": kind})
    first, second = measure()["devices"]
    error = failed(second["steps"])
    assert (error["step"], error["name"]) == (PROOF, "WRONG_DATA")
    assert says in error["detail"]
    assert (first["kernel_verified"], second["kernel_verified"]) == (True, False)


def test_a_driver_that_cannot_compile_the_kernels(fake_cuda: Order) -> None:
    fake_cuda(errors={"cuModuleLoadData@0": 222})
    first, second = measure()["devices"]
    assert failed(first["steps"]) == {**failed(first["steps"]), "step": "load the kernels", "code": 222}
    assert (first["kernel_verified"], second["kernel_verified"]) == (None, True)


def test_a_crash_of_the_library_is_told(fake_cuda: Order) -> None:
    fake_cuda(crash="cuInit")
    found = measure()
    assert found["state"] == "crashed"
    assert "signal 11" in found["describe"]
    assert failed(found["steps"])["name"] == "CRASH"


def test_no_gpu_at_all(fake_cuda: Order) -> None:
    fake_cuda(gpus=0)
    found = measure()
    assert (found["count"], found["devices"]) == (0, [])
