# SPDX-License-Identifier: Apache-2.0
"""What a failure of the driver means in a container on a Proxmox host, and what mends it: a table, not code.

An entry may name a *finding* (see :mod:`rackwell.probe.surroundings`); it is chosen only where that was found. The
first entry that holds is taken, so the last of each list has no condition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class Advice:
    """One cause and its cure; ``when`` names the finding that must hold ("" = always)."""

    cause: str
    fix: str
    when: str = ""


_GIVE_NODE = (
    "on the Proxmox host give the container the node with `pct set VMID --devN {node},mode=0666` "
    "(rackwell: pve_container_devices / pve_container_gpus), then restart the container"
)
_UVM_MISSING = Advice(
    "/dev/nvidia-uvm is not in this container",
    _GIVE_NODE.format(node="/dev/nvidia-uvm") + "; where the host lacks it too: `nvidia-modprobe -c0 -u`",
    when="uvm-node-missing",
)
_UVM_DENIED = Advice(
    "this user may not open /dev/nvidia-uvm: its mode keeps it out",
    _GIVE_NODE.format(node="/dev/nvidia-uvm"),
    when="uvm-node-denied",
)
_UVM_STALE = Advice(
    "/dev/nvidia-uvm has an old major number: the module was reloaded after the container had started",
    "restart the container; devN entries read the number again at each start",
    when="uvm-node-stale",
)
_GPU_MISSING = Advice(
    "no /dev/nvidiaN node of a GPU is in this container",
    _GIVE_NODE.format(node="/dev/nvidia0"),
    when="gpu-node-missing",
)
_GPU_DENIED = Advice(
    "this user may not open a /dev/nvidiaN node: its mode keeps it out",
    _GIVE_NODE.format(node="/dev/nvidia0"),
    when="gpu-node-denied",
)
_CTL_MISSING = Advice(
    "/dev/nvidiactl is not in this container",
    _GIVE_NODE.format(node="/dev/nvidiactl"),
    when="ctl-node-missing",
)
_CTL_DENIED = Advice(
    "this user may not open /dev/nvidiactl: its mode keeps it out",
    _GIVE_NODE.format(node="/dev/nvidiactl"),
    when="ctl-node-denied",
)

_NO_MODULE = Advice(
    "the NVIDIA kernel module is not loaded on the Proxmox host",
    "on the Proxmox host run `modprobe nvidia nvidia_uvm` and look at `dmesg | grep NVRM`",
    when="module-missing",
)
_MISMATCH_FIX = (
    "install in the container exactly the version of the host's kernel module (rackwell: nvidia_userspace_version)"
)
_MISMATCH = Advice(
    "the driver's user space in the container and the host's kernel module are of different versions",
    _MISMATCH_FIX,
    when="versions-differ",
)
_NOT_DEVICE = Advice(
    "a plain file stands where a device node belongs",
    "`rm` it in the container, give the node with a devN entry and restart the container",
    when="node-not-device",
)
_NODES = (
    _CTL_MISSING,
    _CTL_DENIED,
    _UVM_MISSING,
    _UVM_DENIED,
    _UVM_STALE,
    _NOT_DEVICE,
    _GPU_MISSING,
    _GPU_DENIED,
)
_UVM_NODES = (_UVM_MISSING, _UVM_DENIED, _UVM_STALE, _NOT_DEVICE)
_COMPAT = Advice(
    "CUDA's forward-compatibility libraries are found before the driver's own",
    "take /usr/local/cuda/compat out of LD_LIBRARY_PATH and of /etc/ld.so.conf.d, run ldconfig",
    when="compat-libraries",
)
_VISIBLE = Advice(
    "CUDA_VISIBLE_DEVICES is set and hides the GPUs",
    "unset CUDA_VISIBLE_DEVICES, or set it to indices or UUIDs that exist",
    when="visible-devices-set",
)
_HMM_FIX = (
    "on the Proxmox host write `options nvidia_uvm uvm_disable_hmm=1` to /etc/modprobe.d/nvidia-uvm.conf, run "
    "`update-initramfs -u -k all` and reboot (rackwell: pve_host_disable_hmm)"
)
_HMM = Advice(
    "HMM is on in nvidia_uvm (uvm_disable_hmm is N): the known cause on Blackwell with the open module",
    _HMM_FIX,
    when="hmm-on",
)

#: by the driver's code; see driver.py for the negative ones
BY_CODE: dict[int, tuple[Advice, ...]] = {
    -1: (
        Advice(
            "libcuda.so.1 or its Python bindings cannot be loaded in this container",
            "install the driver's user space of the host's version (rackwell: role nvidia_userspace) and run ldconfig",
        ),
    ),
    -2: (
        Advice(
            "the driver in this container is older than this call",
            "install the driver's user space of the host's version, 570 or newer",
        ),
    ),
    2: (
        Advice(
            "the GPU's memory is taken",
            "see with `nvidia-smi` which process holds it and stop that; the probe needs about 128 MiB on each GPU",
        ),
    ),
    3: (
        *_UVM_NODES,
        _MISMATCH,
        _HMM,
        Advice(
            "the driver could not start, and it is not HMM, which is off in nvidia_uvm",
            "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`, then reload nvidia_uvm or reboot",
            when="hmm-off",
        ),
        Advice(
            "the driver could not start; on Blackwell with the open module mostly HMM in nvidia_uvm",
            "read /sys/module/nvidia_uvm/parameters/uvm_disable_hmm; if it is N: " + _HMM_FIX,
        ),
    ),
    46: (Advice("the GPU is held by another process in exclusive mode", "on the host run `nvidia-smi -c DEFAULT`"),),
    100: (
        _NO_MODULE,
        *_NODES,
        _VISIBLE,
        Advice(
            "the driver sees no usable GPU: all of them failed to start or have fallen off the bus",
            "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`; Xid 79 and RmInitAdapter need "
            "a full power cycle",
        ),
    ),
    101: (
        _VISIBLE,
        Advice("a GPU was named that does not exist", "compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`"),
    ),
    205: (
        Advice(
            "the peer's memory could not be mapped: its BAR1 is too small",
            "in the BIOS switch on Above 4G Decoding and Resizable BAR; BAR1 (`nvidia-smi -q -d "
            "MEMORY`) must hold the memory",
        ),
    ),
    214: (
        Advice(
            "the GPU's memory has errors that ECC could not mend",
            "`nvidia-smi -q -d ECC,ROW_REMAPPER`, then reset the GPU; replace it when they return",
        ),
    ),
    217: (
        Advice(
            "the driver refuses direct access between these two GPUs",
            "on the Proxmox host see `nvidia-smi topo -p2p r`: GNS = the GPU, CNS = the chipset, TNS = the topology",
        ),
    ),
    304: (
        *_NODES,
        Advice(
            "the kernel refused an open, ioctl or mmap: a device cgroup or seccomp rule, or it follows another failure",
            "pass the nodes as devN entries (no stale lxc.cgroup2.devices.allow lines) and restart the container",
        ),
    ),
    222: (
        Advice(
            "the driver in this container is older than the probe's kernels",
            "install the driver's user space of the host's version, 570 or newer",
        ),
    ),
    700: (
        Advice(
            "a kernel reached memory that is not mapped: the peer's mapping is broken, or the GPU is",
            "on the Proxmox host look at `dmesg | grep -E 'Xid|IO_PAGE_FAULT'`; boot with `iommu=pt` or IOMMU off",
        ),
    ),
    702: (
        Advice(
            "a kernel ran longer than the GPU allows: it drives a display, or waits for a peer that does not answer",
            "on the Proxmox host look at `dmesg | grep Xid`; no display server on this GPU",
        ),
    ),
    719: (
        Advice(
            "the GPU's context died: a fault on the device",
            "on the Proxmox host look at `dmesg | grep Xid`, then reset or power-cycle the GPU",
        ),
    ),
    800: (
        Advice(
            "access to the devices was lost while running: the device cgroup was rewritten",
            "restart the container; after `systemctl daemon-reload` on the host restart nested containers too",
        ),
    ),
    802: (
        Advice(
            "the NVSwitch fabric is not up",
            "with NVSwitch start nvidia-fabricmanager of the driver's version; a machine without "
            "NVSwitch must not run it",
        ),
    ),
    803: (
        _COMPAT,
        Advice(
            "the driver's user space in the container and the host's kernel module are of different versions",
            _MISMATCH_FIX,
        ),
    ),
    804: (
        Advice(
            "CUDA's forward-compatibility libraries are used on a GPU that has none",
            "take /usr/local/cuda/compat out of LD_LIBRARY_PATH and of /etc/ld.so.conf.d, run ldconfig",
        ),
    ),
    999: (
        *_UVM_NODES,
        _MISMATCH,
        Advice(
            "mostly /dev/nvidia-uvm: missing, of a wrong major number, or made before its module was there",
            "on the Proxmox host run `nvidia-modprobe -c0 -u`, pass the node as a devN entry, then "
            "restart the container",
        ),
    ),
}

UNKNOWN = Advice(
    "no cause is known for this code",
    "on the Proxmox host look at `dmesg | grep -E 'NVRM|Xid'`",
)

#: a call that did not return
HANG: tuple[Advice, ...] = (
    dataclasses.replace(_HMM, cause="the call hangs, and HMM is on in nvidia_uvm: with it start and P2P lock up"),
    Advice(
        "the driver or the GPU's firmware does not answer (Xid 119 or 79)",
        "on the Proxmox host see `dmesg | grep Xid`; a process in state D ends with a reboot only",
        when="hmm-off",
    ),
    Advice(
        "the driver or the GPU's firmware does not answer (Xid 119 or 79), or HMM is on in nvidia_uvm",
        "on the Proxmox host see `dmesg | grep Xid` and uvm_disable_hmm; a process in state D ends with a reboot only",
    ),
)

DATA_MISMATCH_GPU: tuple[Advice, ...] = (
    Advice(
        "what was read back from the GPU is not what was written",
        "on the Proxmox host look at `dmesg | grep -E 'Xid|IO_PAGE_FAULT|AER'`; boot with `iommu=pt` or IOMMU off",
    ),
)
DATA_MISMATCH_PEER: tuple[Advice, ...] = (
    Advice(
        "the driver reported success and the bytes did not arrive: a translating IOMMU, or ACS, is in the path",
        "on the Proxmox host boot with `iommu=pt` or IOMMU off, clear ACS on ports and switches; see "
        "`dmesg` (IO_PAGE_FAULT)",
    ),
)


def choose(advice: Collection[Advice], findings: Collection[str] = ()) -> Advice:
    """The first entry whose condition holds."""
    return next((entry for entry in advice if not entry.when or entry.when in findings), UNKNOWN)


def explain(code: int, findings: Collection[str] = ()) -> Advice:
    """Cause and cure of a code of the driver, given what was found around it."""
    return choose(BY_CODE.get(code, (UNKNOWN,)), findings)
