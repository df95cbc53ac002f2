# SPDX-License-Identifier: Apache-2.0
"""The stand-in for libcuda behaves as the facts say that the real one does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from labmachine import NOBODY, Machine

INIT = "answer(cuda().cuInit(0))"
MEASURE = """
def measure(source, target, size=16 << 20, times=4, enable=True):
    a, b = context(source), None
    p = allocate(size); put(p, bytes(range(256)) * (size // 256))
    b = context(target); q = allocate(size)
    current(a)
    if enable: ok(lib.cuCtxEnablePeerAccess(b, 0))
    s, start, stop, ms = c_void_p(), c_void_p(), c_void_p(), c_float()
    ok(lib.cuStreamCreate(byref(s), 1)); ok(lib.cuEventCreate(byref(start), 0)); ok(lib.cuEventCreate(byref(stop), 0))
    ok(lib.cuEventRecord(start, s))
    for _ in range(times): ok(lib.cuMemcpyPeerAsync(q, b, p, a, c_size_t(size), s))
    ok(lib.cuEventRecord(stop, s)); ok(lib.cuStreamSynchronize(s))
    ok(lib.cuEventElapsedTime_v2(byref(ms), start, stop))
    current(b)
    same = get(q, size) == bytes(range(256)) * (size // 256)
    return round(size * times / ms.value / 1e6, 2), same
"""


def test_counts_in_pci_order_with_identity(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0)
out = []
for i in range(count()):
    name, bus, uuid, major, minor, total = (ctypes.create_string_buffer(96), ctypes.create_string_buffer(16),
        (ctypes.c_ubyte * 16)(), c_int(), c_int(), c_size_t())
    ok(lib.cuDeviceGetName(name, 96, i)); ok(lib.cuDeviceGetPCIBusId(bus, 16, i)); ok(lib.cuDeviceGetUuid_v2(uuid, i))
    ok(lib.cuDeviceGetAttribute(byref(major), 75, i)); ok(lib.cuDeviceGetAttribute(byref(minor), 76, i))
    ok(lib.cuDeviceTotalMem_v2(byref(total), i))
    out.append([name.value.decode(), bus.value.decode(), bytes(uuid).hex(), major.value, minor.value, total.value])
answer(out)
""")
    declared = sorted(machine.state()["gpus"], key=lambda gpu: gpu["bus_id"])
    assert [gpu[1].lower() for gpu in found] == [gpu["bus_id"] for gpu in declared]
    assert [gpu[2] for gpu in found] == [gpu["uuid"].removeprefix("GPU-").replace("-", "") for gpu in declared]
    assert {tuple(gpu[3:]) for gpu in found} == {(12, 0, (97887 - 636) << 20)}
    assert {gpu[0] for gpu in found} == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}


def test_order_is_not_that_of_the_state_file(machine: Machine) -> None:
    gpus = machine.state()["gpus"]
    machine.state(gpus=gpus[::-1])
    bus = machine.run("""
cuda().cuInit(0); b = ctypes.create_string_buffer(16); ok(lib.cuDeviceGetPCIBusId(b, 16, 0)); answer(b.value.decode())
""")
    assert bus.lower() == gpus[0]["bus_id"]


def _remove(*names: str) -> object:
    return lambda machine: [(machine.root / "dev" / name).unlink() for name in names]


def _write(path: str, text: str) -> object:
    return lambda machine: (machine.root / path).write_text(text)


def _close(*names: str) -> object:
    return lambda machine: [(machine.root / "dev" / name).chmod(0o600) for name in names]


ALL_GPUS = [f"nvidia{minor}" for minor in range(8)]


@pytest.mark.parametrize(
    ("breakage", "code"),
    [
        pytest.param(lambda machine: None, 0, id="sound"),
        pytest.param(_remove("nvidiactl"), 100, id="no nvidiactl"),
        pytest.param(_remove("nvidia-uvm"), 999, id="no nvidia-uvm"),
        pytest.param(_remove(*ALL_GPUS), 100, id="no GPU node"),
        pytest.param(_close(*ALL_GPUS), 100, id="GPU nodes closed to this user"),
        pytest.param(_close("nvidiactl"), 100, id="nvidiactl closed to this user"),
        pytest.param(_close("nvidia-uvm"), 999, id="nvidia-uvm closed to this user"),
        pytest.param(_write("sys/module/nvidia/version", "595.58.04\n"), 803, id="kernel module of another version"),
        pytest.param(lambda machine: (machine.root / "sys/module/nvidia/version").unlink(), 100, id="no kernel module"),
        pytest.param(_write("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n"), 3, id="HMM on"),
        pytest.param(lambda machine: machine.state(uvm_major=1), 999, id="nvidia-uvm of a stale major"),
        pytest.param(lambda machine: machine.state(cu_init_error=802), 802, id="declared error"),
        pytest.param(lambda machine: machine.gpu(5, cu_init_error=999), 999, id="declared error of one GPU"),
    ],
)
def test_cu_init(machine: Machine, breakage: object, code: int) -> None:
    breakage(machine)  # type: ignore[operator]
    assert machine.run(INIT, TEST_UID=str(NOBODY)) == code


def test_a_node_that_is_a_file_does_not_count(machine: Machine) -> None:
    (machine.root / "dev/nvidia0").unlink()
    (machine.root / "dev/nvidia0").write_text("")
    assert machine.run("cuda().cuInit(0); answer(count())") == 7


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0", 1),
        ("3,1", 2),
        ("0,9,1", 1),
        ("GPU-4bd29420", 1),
        ("GPU-4bd29420,1,2", 3),
        ("0,0", None),
        ("", None),
        ("-1", None),
        ("GPU-0000", None),
    ],
)
def test_cuda_visible_devices(machine: Machine, visible: str, count: int | None) -> None:
    code = "e = cuda().cuInit(0)\nanswer([e, None if e else count()])"
    assert machine.run(code, CUDA_VISIBLE_DEVICES=visible) == ([0, count] if count else [100, None])


def test_cuda_visible_devices_sets_the_order(machine: Machine) -> None:
    bus = machine.run(
        "cuda().cuInit(0); b = ctypes.create_string_buffer(16); ok(lib.cuDeviceGetPCIBusId(b, 16, 0))\n"
        "answer(b.value.decode())",
        CUDA_VISIBLE_DEVICES="3,0",
    )
    assert bus.lower() == machine.state()["gpus"][3]["bus_id"]


def test_copies_move_the_bytes_at_the_declared_speed(machine: Machine) -> None:
    machine.state(
        p2p={
            "gb_per_s": {"default": 53.5, "cross_numa": 38.0, "same_switch": 55.0},
            "slow_pairs": [[2, 6, 8.0]],
            "latency_us": 0,
        }
    )
    found = machine.run(
        MEASURE + "cuda().cuInit(0); answer([measure(*p) for p in ((0, 1), (0, 2), (0, 7), (2, 6), (6, 2))])"
    )
    assert found == [[55.0, True], [53.5, True], [38.0, True], [8.0, True], [38.0, True]]


def test_without_peer_access_the_copy_goes_through_the_host(machine: Machine) -> None:
    machine.state(p2p={"gb_per_s": {"staged": 18.0}, "latency_us": 0, "no_access_pairs": [[0, 1]]})
    found = machine.run(
        MEASURE
        + """
cuda().cuInit(0)
can, back = c_int(), c_int()
ok(lib.cuDeviceCanAccessPeer(byref(can), 0, 1)); ok(lib.cuDeviceCanAccessPeer(byref(back), 1, 0))
speed = measure(0, 1, enable=False)
a, b = context(0), context(1)
current(a)
answer([can.value, back.value, speed, lib.cuCtxEnablePeerAccess(b, 0)])
"""
    )
    assert found == [0, 1, [18.0, True], 217]


def test_a_corrupt_pair_fails_silently_and_in_one_direction(machine: Machine) -> None:
    machine.state(p2p={"corrupt_pairs": [[0, 1]]})
    found = machine.run(MEASURE + "cuda().cuInit(0); answer([measure(0, 1)[1], measure(1, 0)[1], measure(0, 2)[1]])")
    assert found == [False, True, True]


def test_a_repeated_copy_sees_what_changed_in_between(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0)
a = context(0); p = allocate(1024); b = context(1); q = allocate(1024)
def send(): ok(lib.cuMemcpyPeer(q, b, p, a, c_size_t(1024)))
out = []
put(p, b"x" * 1024); send(); send(); out.append(get(q, 4).decode())
put(p, b"y" * 1024); send(); out.append(get(q, 4).decode())
ok(lib.cuMemsetD8_v2(q, 0x7a, c_size_t(1024))); out.append(get(q, 4).decode()); send(); out.append(get(q, 4).decode())
ok(lib.cuMemsetD32_v2(p, 0x64636261, c_size_t(256))); send(); out.append(get(q, 4).decode())
answer(out)
""")
    assert found == ["xxxx", "yyyy", "zzzz", "yyyy", "abcd"]


def test_transfers_over_one_link_share_it(machine: Machine) -> None:
    machine.state(p2p={"gb_per_s": {"default": 50.0}, "latency_us": 0})
    found = machine.run("""
cuda().cuInit(0)
c = [context(i) for i in range(4)]; m = []
for x in c: current(x); m.append(allocate(1 << 20))
for x in c:
    for y in c:
        current(x)
        if x is not y: ok(lib.cuCtxEnablePeerAccess(y, 0))
def both(first, second):
    took = []
    streams = []
    for source, target in (first, second):
        current(c[source]); s, e, f = c_void_p(), c_void_p(), c_void_p()
        ok(lib.cuStreamCreate(byref(s), 1)); ok(lib.cuEventCreate(byref(e), 0)); ok(lib.cuEventCreate(byref(f), 0))
        ok(lib.cuEventRecord(e, s)); streams.append((source, target, s, e, f))
    for source, target, s, e, f in streams:
        current(c[source])
        ok(lib.cuMemcpyPeerAsync(m[target], c[target], m[source], c[source], c_size_t(1 << 20), s))
        ok(lib.cuEventRecord(f, s))
    for source, target, s, e, f in streams:
        ms = c_float(); current(c[source]); ok(lib.cuStreamSynchronize(s))
        ok(lib.cuEventElapsedTime(byref(ms), e, f)); took.append(ms.value)
    return round(max(took) / ((1 << 20) / 50e9 * 1e3), 3)
answer([both((0, 1), (2, 3)), both((0, 1), (1, 0)), both((0, 1), (2, 1)), both((0, 1), (0, 2))])
""")
    assert found == [1.0, 1.0, 2.0, 2.0]


def test_memory_is_counted_and_ends(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0); context(0)
def free():
    f, t = c_size_t(), c_size_t(); ok(lib.cuMemGetInfo_v2(byref(f), byref(t))); return f.value
before = free(); p = allocate(90 << 30); after = free()
q = c_uint64(); full = lib.cuMemAlloc_v2(byref(q), c_size_t(10 << 30))
ok(lib.cuMemFree_v2(p))
answer([before - after, full, free() == before, lib.cuMemFree_v2(p), lib.cuMemcpyHtoD_v2(p, b"x", c_size_t(1))])
""")
    assert found == [90 << 30, 2, True, 1, 1]


def test_errors_of_one_gpu_and_call(machine: Machine) -> None:
    machine.gpu(3, errors={"cuCtxCreate": 46, "cuMemAlloc": 2})
    machine.state(errors={"cuMemsetD8": 719})
    found = machine.run("""
cuda().cuInit(0)
c = c_void_p(); out = [lib.cuCtxCreate_v2(byref(c), 0, i) for i in (2, 3)]
p = allocate(4096)
answer([*out, lib.cuMemsetD8_v2(p, 1, c_size_t(16))])
""")
    assert found == [0, 46, 719]


def test_a_gpu_that_fell_off(machine: Machine) -> None:
    machine.gpu(0, fell_off=True)
    assert machine.run("cuda().cuInit(0); answer(count())") == 7


def test_the_state_is_read_again_while_a_process_runs(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0); a = context(0); p = allocate(4096)
path = os.environ["RACKWELL_LAB_ROOT"] + "/proc/driver/nvidia/rackwell-lab-gpus.json"
before = lib.cuMemsetD8_v2(p, 1, c_size_t(16))
state = json.load(open(path)); state["gpus"][0]["fell_off"] = True
json.dump(state, open(path + ".new", "w")); os.rename(path + ".new", path)
c = c_void_p()
after = lib.cuMemsetD8_v2(p, 1, c_size_t(16))
answer([before, after, lib.cuCtxCreate_v2(byref(c), 0, 0), lib.cuCtxCreate_v2(byref(c), 0, 1)])
""")
    assert found == [0, 719, 46, 0]


def test_a_fork_of_an_initialised_process_has_no_cuda(machine: Machine) -> None:
    found = machine.run("""
cuda().cuInit(0)
pid = os.fork()
if pid == 0: os._exit(lib.cuInit(0))
answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert found == 3


def test_a_hanging_call_waits_until_it_is_killed(machine: Machine) -> None:
    machine.state(hang={"call": "cuMemcpyPeer", "pair": [0, 1]})
    process = machine.start("""
cuda().cuInit(0)
a = context(0); p = allocate(64); b = context(1); q = allocate(64); c = context(2); r = allocate(64)
ok(lib.cuMemcpyPeer(r, c, p, a, c_size_t(64)))
print("other pair is fine", flush=True)
lib.cuMemcpyPeer(q, b, p, a, c_size_t(64))
print("came back", flush=True)
""")
    try:
        assert process.stdout
        assert process.stdout.readline() == "other pair is fine\n"
        while _system_call(process.pid) != "pause":
            assert process.poll() is None, "it came back"
            os.sched_yield()
    finally:
        process.kill()
        out, _ = process.communicate()
    assert out == ""


def _system_call(pid: int) -> str:
    number = Path(f"/proc/{pid}/syscall").read_text().split(" ", 1)[0]
    return "pause" if number == "34" else number


def test_the_newest_form_that_the_caller_knows(machine: Machine) -> None:
    found = machine.run("""
cuda()
def ask(name, version):
    f, status = c_void_p(), c_int(-1)
    ok(lib.cuGetProcAddress_v2(name, byref(f), version, c_uint64(0), byref(status)))
    return f.value, status.value
def address(name): return ctypes.cast(getattr(lib, name), c_void_p).value
forms = ((3020, "v2"), (11040, "v3"), (12040, "v3"), (12050, "v4"), (13050, "v4"))
answer([
    [ask(b"cuCtxCreate", v)[0] == address("cuCtxCreate_" + n) for v, n in forms],
    ask(b"cuNoSuchThing", 13000), ask(b"cuMemcpyPeer", 3020),
    ask(b"cuEventElapsedTime", 12080)[0] == address("cuEventElapsedTime_v2"),
    lib.cuGetProcAddress(b"cuNoSuchThing", byref(c_void_p()), 13000, c_uint64(0)),
])
""")
    assert found == [[True] * 5, [None, 1], [None, 2], True, 500]


@pytest.mark.parametrize(
    "text", ["", "{", '{"gpus": {}}', '{"gpus": [{"uuid": "GPU-1", "bus_id": "0000:01:00.0"}]}', '{"gpus": []} x']
)
def test_a_state_file_that_is_none_is_said(machine: Machine, text: str) -> None:
    (machine.root / "proc/driver/nvidia/rackwell-lab-gpus.json").write_text(text)
    process = machine.start(INIT)
    out, err = process.communicate()
    assert json.loads(out) == 999
    assert "rackwell lab:" in err
    assert "rackwell-lab-gpus.json" in err


def test_a_context_that_is_gone_is_not_used_again(machine: Machine) -> None:
    found = machine.run("""
import threading
cuda().cuInit(0)
a = context(0); b = context(1); out = []
ready, gone = threading.Event(), threading.Event()
def other():
    current(a); ready.set(); gone.wait(); p = c_uint64()
    out.append(lib.cuMemAlloc_v2(byref(p), c_size_t(4096))); out.append(lib.cuMemsetD8_v2(p, 1, c_size_t(1)))
t = threading.Thread(target=other); t.start(); ready.wait()
ok(lib.cuCtxDestroy_v2(a)); gone.set(); t.join()
d = c_int(); ok(lib.cuCtxGetDevice(byref(d))); out.append(d.value)
ok(lib.cuCtxDestroy_v2(b)); out += [lib.cuCtxGetDevice(byref(d)), lib.cuCtxSynchronize()]
c = c_void_p(); ok(lib.cuDevicePrimaryCtxRetain(byref(c), 2)); current(c); ok(lib.cuDevicePrimaryCtxRelease_v2(2))
answer([*out, lib.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4096))])
""")
    assert found == [709, 709, 1, 201, 201, 201]
