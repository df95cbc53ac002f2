# SPDX-License-Identifier: Apache-2.0
"""Outputs in the form of each tool, of a made-up machine: 4 GPUs, 2 sockets, one root port and one switch on each."""

from __future__ import annotations

import json

GPUS = ["0000:11:00.0", "0000:12:00.0", "0000:a1:00.0", "0000:a2:00.0"]
MINORS = [2, 3, 0, 1]
HARMLESS, REDIRECTING = "SrcValid+ TransBlk- ReqRedir-", "SrcValid+ TransBlk- ReqRedir+"


def uuid(index: int) -> str:
    return f"GPU-11111111-0000-4000-8000-{index:012d}"


def _bridge(bdf: str, port: str, numa: int, buses: tuple[str, str, str], acs: str | None) -> str:
    lines = [
        f"{bdf} PCI bridge: Sample Devices Bridge 1234 (prog-if 00 [Normal decode])",
        "\tControl: I/O+ Mem+ BusMaster+",
        f"\tNUMA node: {numa}",
        "\tBus: primary={}, secondary={}, subordinate={}, sec-latency=0".format(*buses),
        f"\tCapabilities: [58] Express (v2) {port}, MSI 00",
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <64us",
        "\t\tLnkSta:\tSpeed 32GT/s, Width x16",
        "\tCapabilities: [150 v2] Advanced Error Reporting",
        "\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- UnsupReq-",
        "\t\tCESta:\tRxErr- BadTLP+ BadDLLP- Rollover-",
    ]
    if acs is not None:
        lines += [
            "\tCapabilities: [2a0 v1] Access Control Services",
            "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+",
            f"\t\tACSCtl:\t{acs} CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-",
        ]
    return "\n".join(lines) + "\n"


def _gpu(bdf: str, numa: int, width: int) -> str:
    lost = "" if width == 16 else " (downgraded)"
    return (
        f"{bdf} 3D controller: NVIDIA Corporation Device 9999 (rev a1)\n"
        f"\tNUMA node: {numa}\n"
        "\tRegion 0: Memory at 7b000000000 (64-bit, prefetchable) [size=64M]\n"
        "\tRegion 2: Memory at 76000000000 (64-bit, prefetchable) [size=128G]\n"
        "\tCapabilities: [60] Express (v2) Legacy Endpoint, MSI 00\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 unlimited\n"
        f"\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x{width}{lost}\n"
    )


def lspci(acs: str = HARMLESS, *, width: int = 16, root: bool = True) -> str:
    """``lspci -vvv``. acs: of the ports above GPUs. root: False prints no capabilities, as lspci does for a user."""
    text = ""
    for numa, (first, up, down, gpus) in enumerate(
        (("00", "01", "10", ("11", "12")), ("90", "91", "a0", ("a1", "a2")))
    ):
        last = gpus[-1]
        text += _bridge(f"{first}:01.1", "Root Port (Slot+)", numa, (first, up, last), acs)
        text += _bridge(f"{up}:00.0", "Upstream Port", numa, (up, down, last), None)
        for slot, bus in enumerate(gpus):
            text += _bridge(f"{down}:0{slot}.0", "Downstream Port (Slot+)", numa, (down, bus, bus), acs)
        text += "".join(_gpu(f"{bus}:00.0", numa, width if bus == "a2" else 16) for bus in gpus)
    text += "b0:00.0 Audio device: NVIDIA Corporation Device 22e8 (rev a1)\n\tNUMA node: 1\n"
    return text if root else "\n".join(line for line in text.splitlines() if "Capab" not in line and "\t\t" not in line)


def topo(nic: bool = False) -> str:
    """``nvidia-smi topo -m``, with escapes in its header."""
    labels = [
        ["X", "PIX", "SYS", "SYS"],
        ["PIX", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "PIX"],
        ["SYS", "SYS", "PIX", "X"],
    ]
    names = [f"GPU{i}" for i in range(4)] + (["NIC0"] if nic else [])
    text = "\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    for i, row in enumerate(labels):
        cells = [f" {cell} " if cell == "X" else cell for cell in row] + (["PHB" if i < 2 else "SYS"] if nic else [])
        text += f"GPU{i}\t" + "\t".join(cells) + f"\t{i // 2 * 8}-{i // 2 * 8 + 7}\t{i // 2}\t\tN/A\n"
    text += "NIC0\tPHB\tPHB\tSYS\tSYS\t X \t\t\t\t\n" if nic else ""
    return text + "\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single PCIe bridge\n"


def p2p(kind: str = "r", bad: tuple[int, int] | None = None) -> str:
    """``nvidia-smi topo -p2p``, below the command as ``sh -x`` shows it."""
    text = f"+ nvidia-smi topo -p2p {kind}\n \t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\t\x1b[0m\n"
    for i in range(4):
        cells = ["X" if i == j else "CNS" if (i, j) == bad else "OK" for j in range(4)]
        text += f" GPU{i}\t" + "\t".join(cells) + "\t\n"
    return text + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"


def smi_text(**fields: str) -> str:
    """``nvidia-smi -q``. fields: bar1, recovery, ecc of the last GPU."""
    text = "\n==============NVSMI LOG==============\n\nTimestamp : Mon Nov 30 00:00:00 2026\n"
    text += f"{'Driver Version':<55}: 595.58.03\n{'CUDA Version':<55}: 13.2\n\nAttached GPUs{'':<42}: 4\n"
    for i, bus in enumerate(GPUS):
        mine = fields if i == 3 else {}
        text += f"GPU 0000{bus}\n"
        rows = [
            (4, "Product Name", "NVIDIA Sample"),
            (4, "Addressing Mode", "None"),
            (4, "GPU UUID", uuid(i)),
            (4, "Minor Number", str(MINORS[i])),
            (4, "GPU Recovery Action", mine.get("recovery", "None")),
            (4, "PCI", ""),
            (8, "Bus", "0x11"),
            (8, "GPU Link Info", ""),
            (12, "PCIe Generation", ""),
            (16, "Max", "5"),
            (16, "Current", "1"),
            (16, "Device Max", "5"),
            (16, "Host Max", "N/A"),
            (12, "Link Width", ""),
            (16, "Max", "16x"),
            (16, "Current", "16x"),
            (8, "Replays Since Reset", "7"),
            (4, "Performance State", "P8"),
            (4, "FB Memory Usage", ""),
            (8, "Total", "97887 MiB"),
            (8, "Used", "0 MiB"),
            (4, "BAR1 Memory Usage", ""),
            (8, "Total", mine.get("bar1", "131072 MiB")),
            (4, "ECC Errors", ""),
            (8, "Volatile", ""),
            (12, "SRAM Correctable", "4"),
            (12, "SRAM Uncorrectable Parity", mine.get("ecc", "0")),
            (12, "DRAM Uncorrectable", "0"),
            (8, "Aggregate", ""),
            (12, "DRAM Uncorrectable", "9"),
            (4, "Processes", "None"),
        ]
        for indent, key, value in rows:
            text += " " * indent + (f"{key:<{51 - indent}}: {value}" if value else key) + "\n"
    return text


def smi_xml() -> str:
    """``nvidia-smi -q -x``."""
    text = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
    text += "\t<driver_version>595.58.03</driver_version>\n\t<cuda_version>13.2</cuda_version>\n"
    for i, bus in enumerate(GPUS):
        text += (
            f'\t<gpu id="0000{bus}">\n\t\t<product_name>NVIDIA Sample</product_name>\n'
            "\t\t<addressing_mode>None</addressing_mode>\n"
            f"\t\t<uuid>{uuid(i)}</uuid>\n\t\t<minor_number>{MINORS[i]}</minor_number>\n"
            "\t\t<gpu_recovery_action>None</gpu_recovery_action>\n\t\t<performance_state>P8</performance_state>\n"
            "\t\t<pci>\n\t\t\t<pci_gpu_link_info>\n\t\t\t\t<pcie_gen>\n\t\t\t\t\t<max_link_gen>5</max_link_gen>\n"
            "\t\t\t\t\t<current_link_gen>1</current_link_gen>\n\t\t\t\t\t<max_device_link_gen>5</max_device_link_gen>\n"
            "\t\t\t\t\t<max_host_link_gen>N/A</max_host_link_gen>\n\t\t\t\t</pcie_gen>\n\t\t\t\t<link_widths>\n"
            "\t\t\t\t\t<max_link_width>16x</max_link_width>\n\t\t\t\t\t<current_link_width>16x</current_link_width>\n"
            "\t\t\t\t</link_widths>\n\t\t\t</pci_gpu_link_info>\n\t\t\t<replay_counter>7</replay_counter>\n\t\t</pci>\n"
            "\t\t<fb_memory_usage>\n\t\t\t<total>97887 MiB</total>\n\t\t\t<used>0 MiB</used>\n\t\t</fb_memory_usage>\n"
            "\t\t<bar1_memory_usage>\n\t\t\t<total>131072 MiB</total>\n\t\t</bar1_memory_usage>\n"
            "\t\t<ecc_errors>\n\t\t\t<volatile>\n\t\t\t\t<dram_correctable>4</dram_correctable>\n"
            "\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>\n\t\t\t</volatile>\n\t\t\t<aggregate>\n"
            "\t\t\t\t<dram_uncorrectable>9</dram_uncorrectable>\n\t\t\t</aggregate>\n\t\t</ecc_errors>\n\t</gpu>\n"
        )
    return text + "</nvidia_smi_log>\n"


def smi_csv() -> str:
    """``nvidia-smi --query-gpu=… --format=csv``, below its command."""
    names = "index, name, uuid, pci.bus_id, driver_version, pcie.link.gen.current, memory.total [MiB], pstate"
    text = (
        "+ nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,driver_version,pcie.link.gen.current,memory.total,pstate\n"
    )
    text += names + "\n"
    for i, bus in enumerate(GPUS):
        text += f"{i}, NVIDIA Sample, {uuid(i)}, 0000{bus.upper()}, 595.58.03, 1, 97887 MiB, [N/A]\n"
    return text


NUMACTL = """available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3 4 5 6 7
node 0 size: 1000 MB
node 0 free: 900 MB
node 1 cpus: 8 9 10 11 12 13 14 15
node 1 size: 1001 MB
node 1 free: 901 MB
node distances:
node   0   1\x20
  0:  10  32\x20
  1:  32  10\x20
"""
LSCPU = """Architecture:                x86_64
CPU(s):                      16
On-line CPU(s) list:         0-14
Off-line CPU(s) list:        15
Vendor ID:                   AuthenticAMD
Model name:                  Sample CPU
Socket(s):                   2
NUMA node(s):                2
NUMA node0 CPU(s):           0-7
NUMA node1 CPU(s):           8-14
"""
CMDLINE = "BOOT_IMAGE=/vmlinuz-6.17.0-2-pve root=/dev/mapper/pve-root ro quiet {}\n"
DRIVER = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
511 nvidia-uvm
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build  (root@sample)  Mon Nov 30
GCC version:  gcc version 14.2.0
crw-rw-rw- 1 root root 195,   0 Nov 30 00:00 /dev/nvidia0
crw-rw-rw- 1 root root {},   0 Nov 30 00:00 /dev/nvidia-uvm
ResmanDebugLevel: 4294967295
RegistryDwords: "ForceP2P=0x11"
"""


def nvbandwidth(name: str, told: str, rows: list[list[str]], status: str = "Passed") -> str:
    """``nvbandwidth -t TEST -j``, with a line above it as a script's log has."""
    case = {"name": name, "status": status, "bandwidth_description": told, "bandwidth_matrix": rows}
    body = {"version": "v0.8", "Driver Version": "595.58.03", "GPU Device list": ["0: Sample (00000000:11:00)"]}
    return "some log line\n" + json.dumps({"nvbandwidth": {**body, "testcases": [case]}}, indent="\t") + "\n"


P2P_TEST = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA Sample, pciBusID: 11, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA Sample, pciBusID: a1, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CAN Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1\x20
     0 1488.10  21.00\x20
     1  22.00 1416.77\x20
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1\x20
     0 1488.10  56.57\x20
     1  50.97 1416.77\x20
Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)
   D\\D     0      1\x20
     0 1488.10  41.00\x20
     1  42.00 1416.77\x20
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1\x20
     0   2.05   0.45\x20
     1   0.44   2.06\x20

   CPU     0      1\x20
     0   1.50   1.00\x20
     1   1.00   1.50\x20

NOTE: The CUDA Samples are not meant for performance measurements.
"""
