# SPDX-License-Identifier: Apache-2.0
"""Findings of nodes, modules, CUDA's start, the GPUs themselves, the host and the baseline: rows of :mod:`.codes`."""

from __future__ import annotations

_NODE = (
    "`pct set VMID --devN {node},mode=0666` (rackwell: pve_container_devices, pve_container_gpus), "
    "then `pct reboot VMID`"
)
_DMESG = "`dmesg | grep -E 'NVRM|Xid'` on the Proxmox host"
_MATCH = (
    "install in the container exactly the version of the host's kernel module: nvidia_userspace_version, then "
    "`rackwell provision CONTAINER`"
)
_HMM = (
    "on the Proxmox host `echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/nvidia-uvm.conf && "
    "update-initramfs -u -k all`, then reboot it (rackwell: pve_host_disable_hmm)"
)
_POWER = _DMESG + "; Xid 79 and RmInitAdapter failures need a full power cycle (AC off), not a warm reboot"

#: code, check, verdict, title, why, fix
ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "uvm-node-missing",
        "nodes",
        "fail",
        "no /dev/nvidia-uvm",
        "/dev/nvidia-uvm is not in this container; CUDA cannot start without it, nvidia-smi can",
        "`nvidia-modprobe -u -c 0` on the Proxmox host, then " + _NODE.format(node="/dev/nvidia-uvm"),
    ),
    (
        "uvm-node-stale",
        "nodes",
        "fail",
        "/dev/nvidia-uvm has an old major number",
        (
            "the kernel serves nvidia-uvm under another major than the node has: the module was loaded again after the "
            "container had started, or the node was made by hand"
        ),
        "`pct reboot VMID`: devN entries read the number at each start (an lxc.mount.entry or mknod does not)",
    ),
    (
        "node-not-device",
        "nodes",
        "fail",
        "a device node is no device",
        (
            "a plain file stands where the device node belongs: it was made before the "
            "node was there (create=file, a copy, "
            "a redirection)"
        ),
        "`rm {node}` in the container, then " + _NODE,
    ),
    (
        "node-denied",
        "nodes",
        "fail",
        "a device node may not be opened",
        "its mode keeps this user out; devN entries have mode 0660 of root unless told otherwise",
        _NODE,
    ),
    (
        "gpu-node-missing",
        "nodes",
        "fail",
        "no node of a GPU",
        "the kernel module has the GPU, this container has no node of it",
        "`nvidia-modprobe -c MINOR` on the Proxmox host, then " + _NODE,
    ),
    (
        "ctl-node-missing",
        "nodes",
        "fail",
        "no /dev/nvidiactl",
        "/dev/nvidiactl is not in this container",
        _NODE.format(node="/dev/nvidiactl"),
    ),
    (
        "module-missing",
        "driver",
        "fail",
        "the kernel module is not loaded",
        "neither /sys/module/nvidia nor /proc/driver/nvidia is there: the host has not loaded the driver",
        "`modprobe -a nvidia nvidia_uvm` on the Proxmox host; when that fails " + _DMESG,
    ),
    (
        "driver-mismatch",
        "driver",
        "fail",
        "user space and kernel module differ",
        "the driver's libraries in the container and the host's kernel module are not of the same version",
        _MATCH,
    ),
    (
        "hmm-on",
        "driver",
        "fail",
        "CUDA does not start, and HMM is on",
        "HMM is on in nvidia_uvm: with the open module it keeps CUDA from starting on Blackwell (code 3)",
        _HMM,
    ),
    (
        "gpu-missing",
        "gpus",
        "fail",
        "a GPU is missing",
        "it does not answer: it failed to start, fell off the bus, or was not passed into the container",
        _POWER,
    ),
    (
        "gpu-extra",
        "gpus",
        "degraded",
        "more GPUs than declared",
        "the container sees GPUs that its declaration does not have",
        "set gpu_probe_gpus and pve_container_gpus to what the machine has, or `pct set VMID --delete devN`",
    ),
    (
        "cuda-not-initialized",
        "cuda",
        "fail",
        "CUDA does not start: 3",
        "the driver could not start, and nothing seen around it explains why",
        _DMESG + ", then reload nvidia_uvm or reboot",
    ),
    (
        "cuda-no-device",
        "cuda",
        "fail",
        "CUDA sees no device: 100",
        "all GPUs failed to start or have fallen off the bus, or CUDA_VISIBLE_DEVICES hides them",
        _POWER,
    ),
    (
        "cuda-os-refused",
        "cuda",
        "fail",
        "the kernel refused a call of CUDA: 304",
        "an open, ioctl or mmap was refused: a device cgroup or seccomp rule",
        (
            "pass the nodes as devN entries, delete lxc.cgroup2.devices.* lines from "
            "/etc/pve/lxc/VMID.conf, `pct reboot VMID`"
        ),
    ),
    (
        "cuda-fabric-not-ready",
        "cuda",
        "fail",
        "the NVSwitch fabric is not up: 802",
        "the driver waits for a fabric manager",
        "with NVSwitch `systemctl restart nvidia-fabricmanager` of the driver's version; without NVSwitch remove it",
    ),
    (
        "cuda-compat-libraries",
        "cuda",
        "fail",
        "forward-compatibility libraries in the way: 804",
        "CUDA's compat libraries are found before the driver's own",
        "in the container take /usr/local/cuda/compat out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, then `ldconfig`",
    ),
    (
        "cuda-unknown",
        "cuda",
        "fail",
        "CUDA does not start: 999",
        "mostly /dev/nvidia-uvm was made before its module was there",
        "`nvidia-modprobe -u -c 0` on the Proxmox host, then `pct reboot VMID`",
    ),
    ("cuda-failed", "cuda", "fail", "a call of CUDA failed", "see the code of the driver", _DMESG),
    (
        "cuda-hang",
        "cuda",
        "fail",
        "a call of CUDA does not return",
        "the driver or the GPU's firmware does not answer (Xid 119 or 79)",
        _DMESG + "; a process in state D ends with a reboot only",
    ),
    ("cuda-crash", "cuda", "fail", "CUDA ended the process", "the driver's library ended the process", _DMESG),
    (
        "cuda-wrong-data",
        "cuda",
        "fail",
        "a GPU returns wrong data",
        "what was read back from the GPU is not what was written or computed",
        (
            "`dmesg | grep -E 'Xid|IO_PAGE_FAULT|AER'` on the Proxmox host; boot with "
            "`iommu=pt` or IOMMU off; else replace it"
        ),
    ),
    (
        "ecc-uncorrected",
        "health",
        "fail",
        "uncorrected ECC errors",
        "the GPU's memory has errors that ECC could not mend",
        (
            "`nvidia-smi -q -d ECC,ROW_REMAPPER`, then `nvidia-smi --gpu-reset -i "
            "{bus_id}`; replace the GPU when they return"
        ),
    ),
    (
        "recovery-action",
        "health",
        "fail",
        "the GPU asks for a recovery",
        "the driver says that this GPU must be reset or drained before it can be trusted",
        "stop what runs on it, `nvidia-smi --gpu-reset -i {bus_id}` on the Proxmox host, else reboot",
    ),
    (
        "nvml-lost",
        "health",
        "fail",
        "NVML stopped answering during the check",
        (
            "it answered before the measurement and not after: a GPU fell off the bus, "
            "or access to the devices was taken away"
        ),
        _DMESG + "; without an Xid there `pct reboot VMID`",
    ),
    (
        "nvml-failed",
        "health",
        "degraded",
        "NVML does not answer",
        "libnvidia-ml cannot be used here: links under load, ECC and recovery stay unseen",
        "install the driver's user space (rackwell: role nvidia_userspace), then `ldconfig` in the container",
    ),
    (
        "iommu-translated",
        "host",
        "degraded",
        "the IOMMU translates",
        "in the default mode P2P goes through the IOMMU: slow, hangs, or writes silently dropped",
        "boot the Proxmox host with `iommu=pt`, or with `amd_iommu=off iommu=off` (Intel `intel_iommu=off`)",
    ),
    (
        "acs-on",
        "host",
        "degraded",
        "ACS redirects P2P",
        "request or completion redirect is on: what should turn round in the switch goes up to the root port",
        (
            "`setpci -s {bdf} ECAP_ACS+0x6.w=0000` on the Proxmox host for each port "
            "named, at each boot before guests start"
        ),
    ),
    ("hmm-enabled", "host", "degraded", "HMM is on", "CUDA works, but with HMM in nvidia_uvm P2P can lock up", _HMM),
    (
        "registry-keys",
        "host",
        "degraded",
        "the driver's P2P keys are not set",
        "without them the driver stages kernel reads and writes between GPUs of different root ports through memory",
        (
            '/etc/modprobe.d/nvidia.conf: `options nvidia NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1;'
            'RMPcieP2PType=2" NVreg_GrdmaPciTopoCheckOverride=1 NVreg_EnableResizableBar=1`, then reboot the host'
        ),
    ),
    (
        "xid-since-boot",
        "host",
        "degraded",
        "the driver reported a fault since boot",
        "the kernel log of this boot has an Xid that is not a program's own fault",
        _POWER,
    ),
    (
        "baseline-foreign",
        "baseline",
        "degraded",
        "the baseline is of another machine",
        "it names other GPUs or another board: it says nothing about this one and is not used",
        "`rackwell baseline record CONTAINER`",
    ),
    (
        "baseline-outdated",
        "baseline",
        "degraded",
        "the baseline no longer fits",
        "this machine has changed since it was recorded; it is not used",
        "when the change is meant: `rackwell baseline record CONTAINER`",
    ),
    (
        "baseline-damaged",
        "baseline",
        "degraded",
        "the baseline cannot be read",
        "it is no rackwell.gpu_baseline/1, or its digest does not hold; it is not used",
        "`rackwell baseline record CONTAINER`",
    ),
)
