# SPDX-License-Identifier: Apache-2.0
"""Each fault of GPUs, nodes, driver and links has its own code, and no other; a healthy machine has none.

The probe runs in the container as the service user, as the boot gate and `rackwell verify` run it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import inside, lab, more, rackwell

PYTHON = "/opt/rackwell/probe/env/bin/python"
BASELINE = "/var/lib/rackwell/baseline/gpu.json"
WITHOUT_COLLECTIVES = (
    "--only",
    "nodes,driver,gpus,cuda,p2p.access,p2p.data,p2p.bandwidth,p2p.latency,p2p.concurrent,links,health,host,baseline",
)

#: by how it is set: `lab set TARGET KEY=VALUE`, in the running container with "inside"
Fault = tuple[str, ...]


def check(container: str, *options: str) -> dict[str, Any]:
    """A report of the check, with buffers that the stand-in's host memory can hold."""
    command = [PYTHON, "-m", "rackwell.probe", "check", "--json", "--gpus", "8", "--size", "16", *options]
    # the check's own status says what the report's verdict says: both are wanted, so the shell always ends with 0
    told = inside(container, f"cd / && runuser -u rackwell -- {' '.join(command)}; true")
    report: dict[str, Any] = json.loads(told)
    return report


def codes(report: dict[str, Any]) -> list[str]:
    return sorted({finding["code"] for finding in report["findings"]})


@pytest.fixture(autouse=True, scope="module")
def _no_server(container: str) -> Any:
    """The server is left alone by what is checked beside it; these tests want the whole check."""
    inside(container, "systemctl", "stop", "rackwell-inference.service")
    yield
    inside(container, "systemctl", "start", "rackwell-inference.service")


@pytest.fixture(scope="module")
def baseline(site: Path, container: str) -> Iterator[str]:
    """Recorded by the command line; both sides forget it afterwards."""
    recorded = rackwell("baseline", "record", container, "-i", site, "--runs", "2", "--allow-stop-server")
    assert recorded.code == 0, recorded.json["problems"]
    yield BASELINE
    (site / ".rackwell/baselines" / f"{container}.json").unlink()
    inside(container, "rm", BASELINE)


@pytest.fixture
def fault(container: str, host: str) -> Any:
    """``fault("gpu", "p2p.corrupt_pairs=[[0,1]]")``; ``"inside"`` exchanges a node in the running container."""
    done: list[Fault] = []

    def put(*words: str) -> None:
        where = ["--container", container] if words[0] == "inside" else []
        lab("set", "--host", host, *where, *words[words[0] == "inside" :])
        done.append(words)

    yield put
    if any(words[0] == "inside" for words in done):
        for words in done:
            if words[0] == "inside":
                lab("set", "--host", host, "--container", container, "node", f"{words[2].partition('=')[0]}=true")
    lab("reset", "--host", host)


def test_a_healthy_machine_has_no_finding(container: str) -> None:
    report = check(container, "--mode", "full")
    assert (report["verdict"], codes(report)) == ("pass", [])
    assert {c["verdict"] for c in report["checks"] if c["id"] not in {"host", "baseline"}} == {"pass"}


def test_minors_that_are_no_indices_are_no_fault(container: str, fault: Callable[..., None]) -> None:
    fault("gpu", "gpus.0.minor=5", "gpus.3.minor=0")
    inside_minors = {gpu["minor"] for gpu in check(container, "--mode", "quick")["gpus"]}
    assert inside_minors == set(range(8))
    assert codes(check(container, "--mode", "quick")) == []


NODES_AND_START: dict[str, tuple[Fault, str]] = {
    "uvm node missing": (("inside", "node", "nvidia-uvm=false"), "uvm-node-missing"),
    "uvm major changed": (("inside", "node", 'nvidia-uvm={"major": 235}'), "uvm-node-stale"),
    "node is a plain file": (("inside", "node", "nvidia3=file"), "node-not-device"),
    "node mode 0660": (("inside", "node", 'nvidia3={"mode": "0660"}'), "node-denied"),
    "cuInit 3": (("gpu", "cu_init_error=3"), "cuda-not-initialized"),
    "cuInit 3, HMM on": (("kernel", "hmm=true"), "hmm-on"),
    "cuInit 100": (("gpu", "cu_init_error=100"), "cuda-no-device"),
    "cuInit 304": (("gpu", "cu_init_error=304"), "cuda-os-refused"),
    "cuInit 802": (("gpu", "cu_init_error=802"), "cuda-fabric-not-ready"),
    "cuInit 803": (("gpu", "cu_init_error=803"), "driver-mismatch"),
    "cuInit 804": (("gpu", "cu_init_error=804"), "cuda-compat-libraries"),
    "cuInit 999": (("gpu", "cu_init_error=999"), "cuda-unknown"),
    "driver and library differ": (("kernel", "version=590.48.01"), "driver-mismatch"),
    "one GPU gone": (("gpu", "gpus.5.fell_off=true"), "gpu-missing"),
}


def some(faults: dict[str, tuple[Fault, str]], *names: str) -> list[Any]:
    """CI has time for these; the rest are more of the same kind."""
    return [pytest.param(name, marks=() if name in names else more) for name in faults]


@pytest.mark.parametrize(
    "name",
    some(
        NODES_AND_START,
        "uvm major changed",
        "node mode 0660",
        "cuInit 999",
        "driver and library differ",
        "one GPU gone",
    ),
)
def test_what_keeps_cuda_from_working(name: str, container: str, fault: Callable[..., None]) -> None:
    setting, code = NODES_AND_START[name]
    fault(*setting)
    report = check(container, "--mode", "quick")
    assert (report["verdict"], codes(report)) == ("fail", [code])


def test_a_hang_in_cuinit_ends_at_the_deadline(container: str, fault: Callable[..., None]) -> None:
    fault("gpu", "hang=cuInit")
    assert codes(check(container, "--mode", "quick", "--timeout", "6")) == ["cuda-hang"]


COPIES: dict[str, tuple[Fault, str]] = {
    "a pair silently corrupt": (("gpu", "p2p.corrupt_pairs=[[0,3],[3,0]]"), "p2p-corrupt"),
    "one direction corrupt": (("gpu", "p2p.corrupt_pairs=[[6,1]]"), "p2p-corrupt-one-way"),
    "a pair at a third": (("gpu", "p2p.slow_factors=[[2,3,0.33],[3,2,0.33]]"), "p2p-slow-pair"),
    "cross-root pairs at 16 GB/s": (("gpu", "p2p.gb_per_s.cross_root=16"), "p2p-slow-cross-root"),
    "collapse under concurrency": (("gpu", "p2p.concurrent_writes_gb_per_s=2.7"), "p2p-concurrent-collapse"),
    "link trained to Gen2": (("gpu", "gpus.4.pcie_gen=2"), "link-generation"),
    "link trained to x8": (("gpu", "gpus.4.pcie_width=8"), "link-width"),
    "allreduce hangs": (("gpu", "nccl.hang=true"), "allreduce-hang"),
    "allreduce adds wrongly": (("gpu", "nccl.wrong_results=true"), "allreduce-wrong"),
}


@pytest.mark.parametrize("name", some(COPIES, "a pair silently corrupt", "a pair at a third", "allreduce adds wrongly"))
def test_what_is_wrong_between_the_gpus(name: str, container: str, fault: Callable[..., None]) -> None:
    setting, code = COPIES[name]
    fault(*setting)
    # what is wrong between two GPUs shows in an allreduce too, and is told once all the same
    whole = code in {"allreduce-hang", "allreduce-wrong", "p2p-corrupt"}
    deadline = "60" if code == "allreduce-hang" else "120"
    report = check(container, "--mode", "full", "--timeout", deadline, *(() if whole else WITHOUT_COLLECTIVES))
    assert (report["verdict"], codes(report)) == ("fail", [code])


def test_nvml_that_goes_in_the_middle(container: str, fault: Callable[..., None]) -> None:
    inside(container, "rm", "-f", "/dev/shm/rackwell-lab-links")  # no copy was made yet
    fault("gpu", "nvml.lost_seconds_after_copies=120")
    assert codes(check(container, "--mode", "full", *WITHOUT_COLLECTIVES)) == ["nvml-lost"]


def test_the_machines_own_baseline_fits(container: str, baseline: str) -> None:
    report = check(container, "--mode", "full", "--baseline", baseline, *WITHOUT_COLLECTIVES)
    assert (report["baseline"]["state"], codes(report)) == ("used", [])


def test_a_link_that_lost_eight_percent_is_degraded(container: str, baseline: str, fault: Callable[..., None]) -> None:
    fault("gpu", "gpus.2.link_factor=0.92")
    report = check(container, "--mode", "full", "--baseline", baseline, *WITHOUT_COLLECTIVES)
    assert (report["verdict"], codes(report)) == ("degraded", ["link-below-baseline"])


def test_a_baseline_of_another_machine_is_refused(container: str, baseline: str, fault: Callable[..., None]) -> None:
    fault("kernel", "machine=other")
    report = check(container, "--mode", "quick", "--baseline", baseline)
    assert (report["baseline"]["state"], codes(report)) == ("refused", ["baseline-foreign"])
