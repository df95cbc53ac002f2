# SPDX-License-Identifier: Apache-2.0
"""Findings of what lies between the GPUs: P2P, links, collectives. Rows of :mod:`.codes`."""

from __future__ import annotations

_ACS = "`lspci -vvv | grep ACSCtl` must show no ReqRedir+; clear with `setpci -s BDF ECAP_ACS+0x6.w=0000`"
_LINK = "`lspci -vvv -s {bus_id} | grep LnkSta` during a copy, on the Proxmox host"
_AGAIN = "`rackwell verify CONTAINER` once more; `rackwell baseline diff CONTAINER` shows what changed"

#: code, check, verdict, title, why, fix
ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        "p2p-no-access",
        "p2p.access",
        "fail",
        "no direct access between GPUs",
        "the driver offers no peer access for this pair",
        (
            "`nvidia-smi topo -p2p r` on the Proxmox host: GNS = the GPU, CNS = the "
            "chipset, TNS = the topology, DR = a key"
        ),
    ),
    (
        "p2p-corrupt",
        "p2p.data",
        "fail",
        "P2P data arrives wrong",
        "the driver reports success and the bytes are not there: a translating IOMMU, or ACS, is in the path",
        (
            "boot the Proxmox host with `iommu=pt` or IOMMU off, and clear ACS; "
            "`dmesg | grep IO_PAGE_FAULT`. Until then "
            "the pair must not be used (NCCL_P2P_DISABLE=1)"
        ),
    ),
    (
        "p2p-corrupt-one-way",
        "p2p.data",
        "fail",
        "P2P data arrives wrong in one direction",
        "the driver reports success and the bytes are not there, in one direction only",
        (
            "boot the Proxmox host with `iommu=pt` or IOMMU off, and clear ACS; `dmesg "
            "| grep -E 'IO_PAGE_FAULT|AER'`; else "
            "swap the two GPUs' slots to see whether it moves with the card"
        ),
    ),
    (
        "p2p-hang",
        "p2p.data",
        "fail",
        "P2P does not return",
        "a copy between two GPUs never ends: HMM, a translating IOMMU, or a dead link",
        "set uvm_disable_hmm=1 and `iommu=pt` on the Proxmox host; `dmesg | grep -E 'NVRM|Xid'`",
    ),
    (
        "p2p-failed",
        "p2p.data",
        "fail",
        "a P2P call failed",
        "see the code of the driver",
        "`dmesg | grep -E 'NVRM|Xid'` on the Proxmox host",
    ),
    (
        "p2p-slow-pair",
        "p2p.bandwidth",
        "fail",
        "a pair is slow",
        ("both directions of it are below the floor of their link class, other pairs of the same GPUs are not"),
        _ACS,
    ),
    (
        "p2p-slow-direction",
        "p2p.bandwidth",
        "fail",
        "one direction of a pair is slow",
        "it is below the floor of its link class, the way back is not",
        _ACS,
    ),
    (
        "p2p-slow-gpu",
        "p2p.bandwidth",
        "fail",
        "all pairs of a GPU are slow",
        "the GPU's own link is the bottleneck, though its generation and width look right",
        _LINK + "; reseat the card",
    ),
    (
        "p2p-slow-cross-root",
        "p2p.bandwidth",
        "fail",
        "pairs across root ports are slow",
        "what leaves a switch is slow, what stays in it is not: ACS or the IOMMU forces another path",
        _ACS + "; boot with `iommu=pt` or IOMMU off",
    ),
    (
        "p2p-slow-cross-socket",
        "p2p.bandwidth",
        "fail",
        "pairs across sockets are slow",
        "the connection between the processors is the bottleneck",
        "BIOS: xGMI/UPI links at full speed and width, no power saving on them; all memory channels populated",
    ),
    (
        "p2p-latency",
        "p2p.latency",
        "fail",
        "remote reads are slow",
        "a remote read takes as long as a detour through host memory: P2P is staged",
        "`cat /proc/driver/nvidia/params` on the Proxmox host: RegistryDwords must hold ForceP2P=0x11;RMForceP2PType=1",
    ),
    (
        "p2p-concurrent-collapse",
        "p2p.concurrent",
        "fail",
        "bandwidth collapses under concurrency",
        (
            "GPUs of one switch that write behind other root ports at once get a "
            "fraction of what one of them gets: the "
            "posted-write collapse of some switch and processor pairs. Pairs one by one do not show it"
        ),
        (
            "let the engine read instead of write (NCCL_P2P_USE_CUDA_MEMCPY unset, NCCL_P2P_READ_ENABLE=1), update the "
            "switch's firmware, or use GPUs of one root port for one model"
        ),
    ),
    (
        "p2p-concurrent-slow",
        "p2p.concurrent",
        "fail",
        "bandwidth under concurrency is low",
        "less than half of what the links allow arrives when several GPUs copy at once",
        _ACS,
    ),
    (
        "link-generation",
        "links",
        "fail",
        "a link has trained down",
        "under load it runs at a lower generation than both ends can do (idle Gen1 is normal)",
        (
            "reseat the card or riser; BIOS: slot speed not below the card's; a "
            "reboot trains it anew. `setpci -s {bus_id} "
            "CAP_EXP+30.w` bit 5 freezes a speed"
        ),
    ),
    (
        "link-width",
        "links",
        "fail",
        "a link has lost lanes",
        "it has fewer lanes than both ends can do",
        (
            "reseat the card or riser and clean the contacts; BIOS: no bifurcation "
            "of this slot. `lspci -vvv -s {bus_id} | grep LnkSta`"
        ),
    ),
    (
        "link-errors",
        "links",
        "degraded",
        "a link repeats or reports errors",
        "its error or replay counters grew while the check copied: a bad cable, riser or contact",
        "`dmesg | grep AER` on the Proxmox host; reseat or shorten the riser",
    ),
    (
        "bar1-small",
        "links",
        "degraded",
        "BAR1 is smaller than the GPU's memory",
        "peers reach only a part of this GPU's memory",
        ("BIOS: Above 4G Decoding and Resizable BAR on; `nvidia-smi -q -d MEMORY` shows BAR1"),
    ),
    (
        "allreduce-hang",
        "collectives",
        "fail",
        "the allreduce does not return",
        "NCCL's ranks wait for each other: P2P that looks right and is not",
        "`NCCL_P2P_DISABLE=1` shows whether P2P is it; then iommu=pt and uvm_disable_hmm=1 on the Proxmox host",
    ),
    (
        "allreduce-wrong",
        "collectives",
        "fail",
        "the allreduce's result is wrong",
        "the sum that NCCL returns is not the sum",
        (
            "do not serve on this machine; `NCCL_P2P_DISABLE=1` shows whether P2P "
            "is it; then iommu=pt and ACS off on the Proxmox host"
        ),
    ),
    (
        "allreduce-slow",
        "collectives",
        "fail",
        "the allreduce is slow",
        "its bus bandwidth is below what the slowest pair of the ring allows",
        "`NCCL_MIN_NCHANNELS=8 NCCL_P2P_LEVEL=SYS` in the profile's environment; `NCCL_DEBUG=INFO` shows the path",
    ),
    (
        "allreduce-failed",
        "collectives",
        "fail",
        "the allreduce failed",
        "NCCL returned an error",
        "`NCCL_DEBUG=INFO rackwell verify CONTAINER`; /dev/shm and memlock limits of the container",
    ),
    (
        "p2p-below-baseline",
        "baseline",
        "degraded",
        "pairs are slower than recorded",
        "the measurement and its repetition are below this host's baseline by more than its noise",
        _AGAIN,
    ),
    (
        "link-below-baseline",
        "baseline",
        "degraded",
        "a GPU's link is slower than recorded",
        "all that goes over this GPU's link is below this host's baseline by more than its noise",
        _LINK,
    ),
    (
        "concurrent-below-baseline",
        "baseline",
        "degraded",
        "concurrent copies are slower than recorded",
        "the measurement and its repetition are below this host's baseline by more than its noise",
        _AGAIN,
    ),
    (
        "allreduce-below-baseline",
        "baseline",
        "degraded",
        "the allreduce is slower than recorded",
        "the measurement and its repetition are below this host's baseline by more than its noise",
        _AGAIN,
    ),
)
