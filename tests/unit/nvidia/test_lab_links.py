# SPDX-License-Identifier: Apache-2.0
"""The links of the laboratory's GPUs: who shares what, what the faults do, what NVML sees of it."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from labmachine import Machine

START = """
cuda(); ok(lib.cuInit(0)); SIZE = 16 << 20
c = [context(i) for i in range(count())]; m = []
for x in c: current(x); m.append((allocate(SIZE), allocate(SIZE)))
peers(*c)
def copies(flows, times=4, pull=False, size=SIZE):
    # GB/s of each flow, and of all together, when they run at once
    clocks, out = [], []
    for s, d in flows:
        e = c[d if pull else s]; stream = new_stream(e); clock = Clock(e, stream)
        for _ in range(times): ok(lib.cuMemcpyAsync(m[d][1], m[s][0], c_size_t(size), stream))
        clock.stop(); clocks.append(clock)
    us = [clock.read() for clock in clocks]
    return [round(size * times / t / 1e3, 1) for t in us], round(len(flows) * size * times / max(us) / 1e3, 1)
"""


def speeds(machine: Machine, *calls: str, **p2p: Any) -> Any:
    machine.state(p2p={"latency_us": 0, **p2p})
    return machine.run(START + "answer([" + ",".join(calls) + "])")


def test_gpus_of_a_switch_share_its_uplink(machine: Machine) -> None:
    found = speeds(
        machine,
        "copies([(0, 2), (1, 4)])",
        "copies([(0, 1), (1, 2)])",
        "copies([(0, 2), (2, 1)])",
        "copies([(2, 0), (4, 1)])",
        gb_per_s={"default": 50},
    )
    assert found == [[[25.0, 25.0], 50.0], [[50.0, 50.0], 100.0], [[50.0, 50.0], 100.0], [[25.0, 25.0], 50.0]]


def test_who_ends_leaves_its_share(machine: Machine) -> None:
    machine.state(p2p={"latency_us": 0, "gb_per_s": {"default": 50}})
    found = machine.run(
        START
        + """
a, b = new_stream(c[0]), new_stream(c[0]); clocks = [Clock(c[0], a), Clock(c[0], b)]
ok(lib.cuMemcpyAsync(m[1][1], m[0][0], c_size_t(SIZE), a)); clocks[0].stop()
for _ in range(3): ok(lib.cuMemcpyAsync(m[2][1], m[0][0], c_size_t(SIZE), b))
clocks[1].stop(); answer([round(clock.read() * 50e3 / SIZE, 3) for clock in clocks])
"""
    )
    assert found == [2.0, 4.0]


def test_one_to_all_and_all_to_all(machine: Machine) -> None:
    found = speeds(
        machine,
        "copies([(0, d) for d in range(1, 8)])",
        "copies([(s, 0) for s in range(1, 8)])[1]",
        "copies([(s, d) for s in range(8) for d in range(8) if s != d], 1)[1]",
        gb_per_s={"default": 50},
    )
    assert found[0] == [[pytest.approx(50 / 7, rel=0.01)] * 7, 50.0]
    assert found[1] == 50.0
    # twelve flows leave a switch, over one uplink; six of 56 a switch take no uplink
    assert found[2] == pytest.approx(56 / 12 * 50, rel=0.01)


def test_posted_writes_collapse_only_together(machine: Machine) -> None:
    found = speeds(
        machine,
        "copies([(0, 4)])",
        "copies([(0, 4), (1, 6)])",
        "copies([(0, 4), (1, 6)], pull=True)",
        "copies([(0, 4), (0, 6)])",
        "copies([(0, 1), (1, 0)])",
        "copies([(0, 4), (2, 6)])",
        gb_per_s={"default": 50},
        concurrent_writes_gb_per_s=2.6,
    )
    assert [total for _, total in found] == [50.0, 2.6, 50.0, 50.0, 100.0, 100.0]


def test_a_link_that_trained_down_slows_all_of_its_gpu(machine: Machine) -> None:
    machine.gpu(3, pcie_gen=2)
    machine.gpu(5, pcie_width=8)
    found = speeds(machine, *(f"copies([({s}, {d})])[1]" for s, d in ((3, 0), (0, 3), (5, 4), (2, 5), (5, 3), (0, 1))))
    gen2 = round(53.5 * 0.5 / 3.938, 1)
    assert found == [gen2, gen2, 26.8, 26.8, gen2, 53.5]


@pytest.mark.parametrize(
    ("p2p", "expected"),
    [
        ({"gb_per_s": {"cross_root": 16}}, [53.5, 16.0, 16.0, 16.0]),
        ({"gb_per_s": {"cross_root": 45, "cross_numa": 38}}, [53.5, 45.0, 38.0, 38.0]),
        ({"slow_factors": [[0, 7, 0.5]]}, [53.5, 53.5, 26.8, 53.5]),
        ({"read_factor": 0.8}, [53.5, 53.5, 53.5, 53.5]),
        ({"slow_pairs": [[7, 0, 18]]}, [53.5, 53.5, 53.5, 18.0]),
    ],
)
def test_faults_of_pairs(machine: Machine, p2p: dict[str, Any], expected: list[float]) -> None:
    pairs = ((0, 1), (0, 2), (0, 7), (7, 0))
    assert speeds(machine, *(f"copies([({s}, {d})])[1]" for s, d in pairs), **p2p) == expected


def test_reads_may_be_slower_than_writes(machine: Machine) -> None:
    assert speeds(machine, "copies([(0, 2)], pull=True)[1]", read_factor=0.8) == [42.8]


def test_a_small_copy_takes_the_way(machine: Machine) -> None:
    code = (
        START
        + """
def us(s, d):
    clock = Clock(c[s]); ok(lib.cuMemcpyAsync(m[d][1], m[s][0], c_size_t(16), None)); clock.stop()
    return round(clock.read(), 2)
answer([us(0, 1), us(0, 2), us(0, 7), us(1, 0)])
"""
    )
    machine.state(p2p={"latency_pairs": [[1, 0, 14.5]]})
    assert machine.run(code) == [0.71, 1.02, 1.36, 14.5]
    assert machine.run(code.replace("peers(*c)", "")) == [14.0, 14.0, 14.0, 14.5]


def test_noise_is_the_same_for_the_same_seed(machine: Machine) -> None:
    code = START + "answer([copies([(0, 1)])[1] for _ in range(40)])"

    def measure(**p2p: Any) -> list[float]:
        machine.state(seed=p2p.pop("seed", None), p2p={"latency_us": 0, "gb_per_s": {"default": 50}, **p2p})
        (machine.root / "dev/shm/rackwell-lab-links").unlink(missing_ok=True)
        found: list[float] = machine.run(code)
        return found

    one, again, other = (measure(noise=0.03, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert 0.015 < statistics.stdev(one) / 50 < 0.05
    assert statistics.mean(one) == pytest.approx(50, rel=0.02)
    assert len(set(measure(run_noise=0.03, seed=1))) == 1
    second = machine.run(code)  # the next process of the same seed
    assert set(second) != {50.0}
    assert second != measure(run_noise=0.03, seed=1)
    assert set(measure(seed=1)) == {50.0}


def test_a_pair_that_hangs_is_waited_for(machine: Machine) -> None:
    machine.state(p2p={"hang_pairs": [[0, 1]]})
    process = machine.start(
        START
        + """
copies([(1, 0)]); s = new_stream(c[0]); ok(lib.cuMemcpyAsync(m[1][1], m[0][0], c_size_t(SIZE), s))
busy = [lib.cuStreamQuery(s) for _ in range(3)]
print(busy, flush=True); lib.cuStreamSynchronize(s); print("came back", flush=True)
"""
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "[600, 600, 600]\n"
        while Path(f"/proc/{process.pid}/syscall").read_text().split(" ", 1)[0] != "202":
            assert process.poll() is None, "it came back"
            os.sched_yield()
    finally:
        process.kill()
        out, _ = process.communicate()
    assert out == ""


def test_who_asks_is_told_once_that_it_runs(machine: Machine) -> None:
    found = machine.run(
        START
        + """
s, e = new_stream(c[0]), c_void_p(); ok(lib.cuEventCreate(byref(e), 0))
idle = lib.cuStreamQuery(s)
ok(lib.cuMemcpyAsync(m[1][1], m[0][0], c_size_t(SIZE), s)); ok(lib.cuEventRecord(e, s))
answer([idle, lib.cuEventQuery(e), lib.cuEventQuery(e), lib.cuStreamQuery(s)])
"""
    )
    assert found == [0, 600, 0, 0]


def test_streams_wait_for_events_and_the_default_stream(machine: Machine) -> None:
    machine.state(p2p={"latency_us": 0, "gb_per_s": {"default": 50}})
    found = machine.run(
        START
        + """
def send(stream, s=0, d=1): ok(lib.cuMemcpyAsync(m[d][1], m[s][0], c_size_t(SIZE), stream))
a, b, e = new_stream(c[0]), new_stream(c[0]), c_void_p(); ok(lib.cuEventCreate(byref(e), 0))
clock = Clock(c[0], a); send(a); ok(lib.cuEventRecord(e, a)); ok(lib.cuStreamWaitEvent(b, e, 0)); send(b)
later = Clock(c[0], b); later.stop(); clock.events[1] = later.events[1]
out = [round(clock.read() * 50e3 / SIZE, 3)]
blocking = c_void_p(); ok(lib.cuStreamCreate(byref(blocking), 0)); clock = Clock(c[0])
send(blocking); send(None); send(blocking); clock.stop(); out.append(round(clock.read() * 50e3 / SIZE, 3))
answer(out)
"""
    )
    assert found == [2.0, 3.0]


NVML = (
    START
    + """
nvml(); ok(ml.nvmlInit_v2())
def device(i):
    d = c_void_p(); ok(ml.nvmlDeviceGetHandleByIndex_v2(i, byref(d))); return d
def number(name, i):
    v = c_uint(); ok(getattr(ml, "nvmlDeviceGet" + name)(device(i), byref(v))); return v.value
"""
)


def test_a_link_shows_its_generation_while_copies_run(machine: Machine) -> None:
    machine.gpu(2, pcie_gen=4, pcie_width=8)
    found = machine.run(
        NVML
        + """
def look(): return [[number("CurrPcieLinkGeneration", i), number("CurrPcieLinkWidth", i)] for i in (0, 2, 5)]
before = look(); copies([(0, 2)])
names = ("MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "PcieSpeed")
answer([before, look(), *(number(name, 2) for name in names)])
"""
    )
    idle = [[1, 16], [1, 8], [1, 16]]
    assert found == [idle, [[5, 16], [4, 8], [1, 16]], 5, 5, 16000]


def test_another_process_sees_it_too(machine: Machine) -> None:
    machine.run(START + "copies([(0, 2)]); answer(0)")
    assert machine.smi("--query-gpu=pcie.link.gen.current", "--format=csv,noheader", "-i", "2").stdout == "5\n"
    (machine.root / "dev/shm/rackwell-lab-links").unlink()
    assert machine.smi("--query-gpu=pcie.link.gen.current", "--format=csv,noheader", "-i", "2").stdout == "1\n"


def test_replays_grow_with_copies(machine: Machine) -> None:
    machine.gpu(1, pcie_replays=3, pcie_replays_per_copy=2)
    found = machine.run(
        NVML
        + """
before = number("PcieReplayCounter", 1); copies([(1, 0)])
answer([before, number("PcieReplayCounter", 1), number("PcieReplayCounter", 0)])
"""
    )
    assert found == [3, 11, 0]


def test_processes_and_memory(machine: Machine) -> None:
    machine.gpu(6, processes=[{"pid": 77, "mib": 1000}])
    found = machine.run(
        NVML
        + """
class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong), ("gi", c_uint), ("ci", c_uint)]
def processes(i):
    n = c_uint(0); code = ml.nvmlDeviceGetComputeRunningProcesses_v3(device(i), byref(n), None)
    room = (Process * 8)(); n = c_uint(8); ok(ml.nvmlDeviceGetComputeRunningProcesses_v3(device(i), byref(n), room))
    return code, [(p.pid, p.memory >> 20) for p in room[:n.value]]
def used(i):
    v = (c_ulonglong * 3)(); ok(ml.nvmlDeviceGetMemoryInfo(device(i), v)); return v[2] >> 20
f, t = c_size_t(), c_size_t(); current(c[6]); ok(lib.cuMemGetInfo_v2(byref(f), byref(t)))
out = [os.getpid(), processes(6), used(6), (t.value - f.value) >> 20]
for x in c: ok(lib.cuCtxDestroy_v2(x))
answer([*out, processes(0), processes(6)])
"""
    )
    pid = found[0]
    assert found[1:] == [[7, [[pid, 32], [77, 1000]]], 1032 + 636, 1032, [0, []], [7, [[77, 1000]]]]


def test_no_nvlink_and_health(machine: Machine) -> None:
    machine.gpu(0, remapped_pending=True, recovery_action=4, bar1_mib=256)
    found = machine.run(
        NVML
        + """
v, r = c_uint(), [c_uint() for _ in range(4)]; b = (c_ulonglong * 3)()
ok(ml.nvmlDeviceGetRemappedRows(device(0), *map(byref, r))); ok(ml.nvmlDeviceGetBAR1MemoryInfo(device(0), b))
nvlink = [ml.nvmlDeviceGetNvLinkState(device(0), 0, byref(v)), ml.nvmlDeviceGetNvLinkVersion(device(0), 0, byref(v))]
answer([*nvlink, [x.value for x in r], b[0] >> 20])
"""
    )
    assert found == [3, 3, [0, 0, 1, 0], 256]
    told = machine.smi("--query-gpu=gpu_recovery_action,remapped_rows.pending", "--format=csv,noheader").stdout
    assert told.splitlines()[:2] == ["Drain and Reset, Yes", "None, No"]


def test_nvml_goes_away_after_some_calls(machine: Machine) -> None:
    machine.state(nvml={"lost_after_calls": 3})
    code = NVML.replace(START, "") + "n = c_uint(); answer([ml.nvmlDeviceGetCount_v2(byref(n)) for _ in range(5)])"
    assert machine.run(code) == [0, 0, 0, 999, 999]
    machine.state(nvml={"lost_after_calls": 1, "lost_code": 15})
    assert machine.run(code) == [0, 15, 15, 15, 15]


def test_nvml_goes_away_while_copies_run(machine: Machine) -> None:
    machine.state(nvml={"lost_seconds_after_copies": 3600})
    found = machine.run(
        NVML
        + """
n = c_uint(); before = ml.nvmlDeviceGetCount_v2(byref(n)); copies([(0, 1)])
answer([before, ml.nvmlDeviceGetCount_v2(byref(n)), ml.nvmlShutdown(), ml.nvmlInit_v2()])
"""
    )
    assert found == [0, 999, 0, 999]


def test_one_gpu_is_lost(machine: Machine) -> None:
    machine.gpu(4, nvml_lost_after_calls=2)
    code = (
        NVML.replace(START, "")
        + """
v = c_uint(); d = [device(i) for i in (3, 4)]
answer([[ml.nvmlDeviceGetPowerUsage(x, byref(v)) for _ in range(3)] for x in d])
"""
    )
    assert machine.run(code) == [[0, 0, 0], [0, 15, 15]]


def test_aer_grows_with_what_the_link_carries(machine: Machine) -> None:
    machine.gpu(1, aer_correctable_per_gb=100)
    counter = machine.root / "sys/bus/pci/devices/0000:12:00.0/aer_dev_correctable"
    counter.parent.mkdir(parents=True)
    counter.write_text("RxErr 0\nBadTLP 9\nBadDLLP 0\nTOTAL_ERR_COR 9\n")
    machine.run(START + "copies([(1, 0)], times=15); answer(0)")
    grown = 9 + 100 * 15 * (16 << 20) // 10**9
    assert counter.read_text() == f"RxErr 0\nBadTLP {grown}\nBadDLLP 0\nTOTAL_ERR_COR {grown}\n"
