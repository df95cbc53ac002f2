# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for NVML and nvidia-smi behave as the facts say that the real ones do."""

from __future__ import annotations

import os
import time

import pytest
from labmachine import NOBODY, Driver, Machine

READ = """
def device(i):
    d = c_void_p(); ok(ml.nvmlDeviceGetHandleByIndex_v2(i, byref(d))); return d
def number(name, d):
    v = c_uint(); ok(getattr(ml, name)(d, byref(v))); return v.value
def energy(d):
    v = c_ulonglong(); ok(ml.nvmlDeviceGetTotalEnergyConsumption(d, byref(v))); return v.value
def rates(d):
    v = (c_uint * 2)(); ok(ml.nvmlDeviceGetUtilizationRates(d, v)); return list(v)
"""
INIT = "answer(nvml().nvmlInit_v2())"


def test_init(machine: Machine) -> None:
    assert machine.run(INIT) == 0


def test_driver_of_another_version(machine: Machine) -> None:
    (machine.root / "sys/module/nvidia/version").write_text("570.148.08\n")
    assert machine.run(INIT) == 18
    told = machine.smi()
    assert told.returncode == 18
    assert told.stdout == "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.58\n"


def test_no_driver(machine: Machine) -> None:
    (machine.root / "dev/nvidiactl").unlink()
    assert machine.run(INIT) == 9
    told = machine.smi()
    assert told.returncode == 9
    assert told.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_closed_to_this_user(machine: Machine) -> None:
    (machine.root / "dev/nvidiactl").chmod(0o600)
    assert machine.run(INIT, TEST_UID=str(NOBODY)) == 4


def test_works_where_cuda_does_not(machine: Machine) -> None:
    (machine.root / "dev/nvidia-uvm").unlink()
    (machine.root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("N\n")
    assert machine.smi("-L").returncode == 0


def test_only_given_gpus_are_counted(machine: Machine) -> None:
    gpus = machine.state()["gpus"]
    for gpu in gpus[1:]:
        (machine.root / f"dev/nvidia{gpu['minor']}").unlink()
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert machine.smi("-L").stdout == f"GPU 0: {name} (UUID: {gpus[0]['uuid']})\n"
    (machine.root / f"dev/nvidia{gpus[0]['minor']}").unlink()
    assert (machine.smi().returncode, machine.smi().stdout) == (6, "No devices were found\n")


def test_idle_busy_and_stale(machine: Machine) -> None:
    code = (
        READ
        + """
nvml().nvmlInit_v2(); d = device(0)
def memory():
    v = (c_ulonglong * 3)(); ok(ml.nvmlDeviceGetMemoryInfo(d, v)); return v[2] >> 20
answer([number("nvmlDeviceGetPowerUsage", d), rates(d)[0], number("nvmlDeviceGetCurrPcieLinkGeneration", d), memory()])
"""
    )
    assert machine.run(code) == [88000, 0, 1, 636]
    machine.load(f"{time.time():.3f} 50 0 90000\n")
    assert machine.run(code) == [169000, 50, 5, 90636]
    machine.load(f"{time.time() - 4:.3f} 50 0 90000\n")
    assert machine.run(code) == [88000, 0, 1, 636]


def test_energy_is_idle_power_and_the_load_and_never_falls(machine: Machine) -> None:
    now = time.time()
    found = machine.run(
        READ
        + """
nvml().nvmlInit_v2(); d = device(0)
def load(text):
    path = os.environ["RACKWELL_LAB_LOAD"]
    open(path + ".new", "w").write(text); os.rename(path + ".new", path)
idle = energy(d)
load(os.environ["OLD"]); busy = energy(d)
load(os.environ["LESS"]); less = energy(d)
answer([idle, busy, less, __import__("time").clock_gettime(7)])
""",
        OLD=f"{now - 100:.3f} 0 1000\n",
        LESS=f"{now - 100:.3f} 0 10\n",
    )
    idle, busy, less, uptime = found
    assert 0 <= uptime * 88e3 - idle < 88e3 * 60
    assert busy - idle >= 1_000_000
    assert less >= busy


def test_a_gpu_that_fell_off(machine: Machine) -> None:
    machine.gpu(2, fell_off=True)
    found = machine.run(
        """
nvml().nvmlInit_v2(); n = c_uint(); ok(ml.nvmlDeviceGetCount_v2(byref(n)))
answer([n.value, *(ml.nvmlDeviceGetHandleByIndex_v2(i, byref(c_void_p())) for i in (2, 3))])
"""
    )
    assert found == [8, 15, 0]
    assert machine.smi().returncode == 15
    assert "GPU is lost" in machine.smi().stdout


def test_versioned_structures(machine: Machine) -> None:
    found = machine.run(
        READ
        + """
nvml().nvmlInit_v2(); d = device(0)
class Memory(ctypes.Structure):
    _fields_ = [("version", c_uint)] + [(n, c_ulonglong) for n in ("total", "reserved", "free", "used")]
class Field(ctypes.Structure):
    _fields_ = [("id", c_uint), ("scope", c_uint), ("at", c_ulonglong), ("latency", c_ulonglong), ("type", c_uint),
                ("result", c_uint), ("value", c_ulonglong)]
m = Memory(version=0x02000028); ok(ml.nvmlDeviceGetMemoryInfo_v2(d, byref(m)))
f = (Field * 3)(Field(id=186), Field(id=83), Field(id=99999)); ok(ml.nvmlDeviceGetFieldValues(d, 3, f))
answer([m.total >> 20, m.reserved >> 20, m.used, ml.nvmlDeviceGetMemoryInfo_v2(d, byref(Memory())),
        f[0].value, f[1].type, abs(f[1].value - energy(d)) < 88000 * 60, f[2].result])
"""
    )
    assert found == [97887, 636, 0, 25, 88000, 3, True, 3]


def test_faults_by_call(machine: Machine) -> None:
    machine.gpu(1, errors={"nvmlDeviceGetPowerUsage": 999})
    found = machine.run(
        READ
        + "nvml().nvmlInit_v2(); v = c_uint()\n"
        + "answer([ml.nvmlDeviceGetPowerUsage(device(i), byref(v)) for i in (0, 1)])"
    )
    assert found == [0, 999]


def test_the_topology_matrix_is_the_real_text(machine: Machine) -> None:
    told = machine.smi("topo", "-m").stdout.split("\n")
    assert told[0] == (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    )
    assert told[1] == "GPU0\t X \tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-63,128-191\t0\t\tN/A"
    assert told[8] == "GPU7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\t X \t64-127,192-255\t1\t\tN/A"
    assert told[9:13] == ["", "Legend:", "", "  X    = Self"]
    assert told[-2:] == ["  NV#  = Connection traversing a bonded set of # NVLinks", ""]


def test_the_p2p_matrix(machine: Machine) -> None:
    machine.state(p2p={"no_access_pairs": [[0, 1]], "status": 2})
    told = machine.smi("topo", "-p2p", "r").stdout.split("\n")
    assert told[1] == " GPU0\tX\tGNS\tOK\tOK\tOK\tOK\tOK\tOK\t"
    assert told[2] == " GPU1\tOK\tX\tOK\tOK\tOK\tOK\tOK\tOK\t"
    assert machine.smi("topo", "-p2p").stdout == 'Option "-p2p" is missing its value.\n'


def test_query_gpu(machine: Machine) -> None:
    fields = "index,uuid,pci.bus_id,power.draw,enforced.power.limit,clocks.sm,clocks_event_reasons.active,fan.speed"
    uuid = machine.state()["gpus"][3]["uuid"]
    told = machine.smi(f"--query-gpu={fields}", "--format=csv", "-i", uuid)
    assert told.returncode == 0
    assert told.stdout == (
        "index, uuid, pci.bus_id, power.draw [W], enforced.power.limit [W], clocks.current.sm [MHz], "
        "clocks_event_reasons.active, fan.speed\n"
        f"3, {uuid}, 00000000:62:00.0, 88.00 W, 600.00 W, 180 MHz, 0x0000000000000001, [N/A]\n"
    )
    bare = machine.smi("--query-gpu=index,power.draw", "--format=csv,noheader,nounits")
    assert bare.stdout.splitlines()[7] == "7, 88.00"
    wrong = machine.smi("--query-gpu=nonsense", "--format=csv")
    assert (wrong.returncode, wrong.stdout) == (2, 'Field "nonsense" is not a valid field to query.\n\n')


def test_the_log_has_the_real_columns(machine: Machine) -> None:
    lines = machine.smi("-q", "-i", "0").stdout.splitlines()
    assert lines[1] == "==============NVSMI LOG=============="
    assert "Driver Version                                         : 595.58.03" in lines
    assert "CUDA Version                                           : 13.2" in lines
    assert "    Minor Number                                       : 2" in lines
    assert "                Max                                    : 16x" in lines
    assert "        GPU Current Temp                               : 30 C" in lines
    assert "        Current Power Limit                            : 600.00 W" in lines


@pytest.mark.parametrize("arguments", [["--nonsense"], ["topo"], ["-q", "-x"]])
def test_wrong_use(machine: Machine, arguments: list[str]) -> None:
    told = machine.smi(*arguments)
    assert told.returncode == 2
    assert told.stdout.startswith("Invalid combination of input arguments.")


def test_no_library(machine: Machine, driver: Driver) -> None:
    told = machine.smi("-L", LD_LIBRARY_PATH=os.fspath(driver.run_file.parent))
    assert told.returncode == 12
    assert told.stdout.startswith("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")
