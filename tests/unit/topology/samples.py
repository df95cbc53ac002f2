# SPDX-License-Identifier: Apache-2.0
"""Reports as the probe writes them, of made-up machines: one healthy, one for each of several faults.

The figures are a model's. The machine has 8 GPUs on 2 sockets, 2 root ports on each, one switch of 2 GPUs below each.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from rackwell.probe import baseline as baselines
from rackwell.probe import regression

Report = dict[str, Any]
ROOTS = ["0000:00:01.1", "0000:70:01.1", "0000:80:01.1", "0000:f0:01.1"]
SWITCHES = ["0000:01:00.0", "0000:71:00.0", "0000:81:00.0", "0000:f1:00.0"]
BUSES = [
    "0000:06:00.0", "0000:07:00.0", "0000:75:00.0", "0000:76:00.0",
    "0000:84:00.0", "0000:85:00.0", "0000:f4:00.0", "0000:f5:00.0",
]  # fmt: skip
MINORS = [2, 3, 0, 1, 6, 7, 4, 5]
RATES = {"same-switch": 53.6, "same-root-complex": 53.1, "cross-socket": 38.4, "nvlink": 394.0}
CHECKS = [
    ("nodes", "device nodes"), ("driver", "driver"), ("gpus", "GPUs present"), ("cuda", "CUDA"),
    ("p2p.access", "peer access"), ("p2p.data", "data of every pair"), ("p2p.bandwidth", "bandwidth of every pair"),
    ("p2p.latency", "latency of every pair"), ("p2p.concurrent", "many transfers at once"), ("links", "PCIe links"),
    ("health", "health"), ("collectives", "allreduce"), ("host", "Proxmox host"), ("baseline", "baseline"),
]  # fmt: skip
SUMMARIES = {
    "nodes": "12 nodes, uvm major 510 as registered",
    "driver": "595.58.03 in the kernel and in user space",
    "gpus": "8 of 8 GPUs",
    "cuda": "8 of 8 GPUs initialise, copy and compute as rackwell",
    "p2p.access": "56 of 56 pairs read, write and do atomics",
    "p2p.data": "56 of 56 pairs, 12.0 GB compared, 0 wrong",
    "p2p.bandwidth": "36.9 to 54.6 GB/s, floors 45 and 30",
    "p2p.latency": "0.69 to 1.40 us, below 3",
    "p2p.concurrent": "all-to-all 331 GB/s, writes behind other roots 98 GB/s",
    "links": "8 of 8 at Gen5 x16 under load, no new errors",
    "health": "no ECC errors, no recovery asked for",
    "collectives": "allreduce 40.1 GB/s at 256 MiB, 32 us at 8 KiB, 0 wrong",
    "host": "IOMMU off, ACS off on 20 ports, HMM off",
    "baseline": "within noise of the baseline of 2026-11-01",
}


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012d}"


def link_class(src: int, dst: int) -> str:
    if src // 4 != dst // 4:
        return "cross-socket"
    return "same-switch" if src // 2 == dst // 2 else "same-root-complex"


def pairs(count: int = 8) -> list[tuple[int, int]]:
    return [(s, d) for s in range(count) for d in range(count) if s != d]


def check(ident: str, title: str) -> Report:
    return {
        "id": ident, "title": title, "verdict": "pass", "code": "ok", "summary": SUMMARIES[ident],
        "measured": None, "expected": None, "unit": "", "basis": None,
    }  # fmt: skip


def finding(code: str, check: str, verdict: str, what: str, **fields: Any) -> Report:
    empty = {
        "where": "", "measured": None, "expected": None, "unit": "", "basis": "rule", "why": "", "fix": "",
        "gpus": [], "pairs": [], "consequences": [],
    }  # fmt: skip
    return {"code": code, "check": check, "verdict": verdict, "what": what, **empty, **fields}


def healthy(seed: int = 1) -> Report:
    """8 GPUs, everything measured, a baseline that fits."""
    noise = random.Random(seed)

    def rate(value: float) -> tuple[list[float], float]:
        samples = [round(value * noise.gauss(1, 0.004), 2) for _ in range(5)]
        return samples, sorted(samples)[2]

    bandwidth, latency = [], []
    for engine, share in (("copy", 1.0), ("kernel", 0.97)):
        for op, part in (("write", 1.0), ("read", 0.985)):
            for ways in (1, 2):
                for s, d in pairs():
                    samples, median = rate(RATES[link_class(s, d)] * share * part * (0.96 if ways == 2 else 1))
                    bandwidth.append(
                        {"src": s, "dst": d, "engine": engine, "op": op, "ways": ways}
                        | {"samples": samples, "gb_per_s": median}
                    )
    for kind, base in (("remote-read", 0.72), ("copy", 2.4)):
        for s, d in pairs():
            samples, median = rate(base * (1.85 if s // 4 != d // 4 else 1))
            latency.append({"src": s, "dst": d, "kind": kind, "samples": samples, "us": median})
    patterns = [
        ("one-to-all", "write", [[0, d] for d in range(1, 8)], 53.0),
        ("all-to-one", "write", [[s, 0] for s in range(1, 8)], 52.6),
        ("all-to-all", "write", [[s, (s + 1) % 8] for s in range(8)], 331.0),
        ("switch-writes", "write", [[0, 4], [1, 6], [2, 5], [3, 7]], 98.0),
        ("switch-reads", "read", [[0, 4], [1, 6], [2, 5], [3, 7]], 101.0),
    ]
    concurrent = []
    for pattern, op, flows, total in patterns:
        samples, median = rate(total)
        concurrent.append(
            {"pattern": pattern, "op": op, "flows": flows, "samples": samples, "gb_per_s": median, "verified": True}
            | {"flow_gb_per_s": [round(median / len(flows), 2)] * len(flows)}
        )
    points = []
    for power in range(13, 29, 3):
        size = 1 << power
        us = round(29 + size / 40.5e3 * 1.75, 1)
        points.append(
            {"bytes": size, "us": us, "algbw": round(size / us / 1e3, 2), "busbw": round(size / us / 1e3 * 1.75, 2)}
            | {"samples_us": [us] * 5, "wrong": 0}
        )
    return {
        "schema": "rackwell.gpu/1",
        "mode": "full",
        "beside_server": False,
        "verdict": "pass",
        "host": "glm5-01",
        "boot_id": "6f1d0b0e-0000-4000-8000-000000000001",
        "started": "2026-11-30T02:10:00Z",
        "seconds": 41.2,
        "user": 999,
        "probe_version": "0.2.0",
        "driver_version": "595.58.03",
        "user_space_version": "595.58.03",
        "cuda_version": "13.2",
        "gpus": [
            {
                "index": i, "uuid": uuid(i), "bus_id": BUSES[i], "name": "NVIDIA RTX PRO 6000 (sample)",
                "compute_capability": "12.0", "memory_total": 97887 << 20, "minor": MINORS[i], "numa": i // 4,
                "root": ROOTS[i // 2], "switch": SWITCHES[i // 2],
                "path": [ROOTS[i // 2], SWITCHES[i // 2], BUSES[i]],
            }
            for i in range(8)
        ],
        "topology": {
            "sockets": [
                {
                    "numa": n,
                    "roots": [
                        {
                            "root": ROOTS[r], "gpus": [],
                            "switches": [{"switch": SWITCHES[r], "gpus": [2 * r, 2 * r + 1]}],
                        }
                        for r in (2 * n, 2 * n + 1)
                    ],
                }
                for n in (0, 1)
            ],
            "classes": [[None if s == d else link_class(s, d) for d in range(8)] for s in range(8)],
            "nvlink": [[0] * 8 for _ in range(8)],
        },
        "checks": [check(ident, title) for ident, title in CHECKS],
        "findings": [],
        "measurements": {
            "cuda": {"steps": [], "devices": [{"index": i, "steps": [], "kernel_verified": True} for i in range(8)]},
            "p2p": {
                "size": 256 << 20,
                "capability": [
                    {"src": s, "dst": d, "read": True, "write": True, "atomics": True, "performance_rank": 0}
                    for s, d in pairs()
                ],
                "data": [
                    {
                        "src": s, "dst": d, "engine": engine, "op": op, "ok": True, "bytes": 256 << 20, "wrong": 0,
                        "first": None, "kind": None, "source_intact": True,
                    }
                    for s, d in pairs() for engine, op in (("copy", "write"), ("kernel", "write"), ("kernel", "read"))
                ],
                "bandwidth": bandwidth,
                "latency": latency,
                "concurrent": concurrent,
                "memory": [{"gpu": i, "gb_per_s": round(1480 * noise.gauss(1, 0.003), 1)} for i in range(8)],
                "errors": [], "state": "done", "at": None,
            },
            "links": [
                {
                    "gpu": i, "bus_id": BUSES[i], "gen_gpu_max": 5, "gen_host_max": 5, "gen_load": 5, "width_max": 16,
                    "width_load": 16, "idle_gen": 1, "replays": [0, 0], "bar1_total": 128 << 30,
                    "ports": [
                        {
                            "bdf": bdf, "kind": kind, "speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0,
                            "max_width": 16, "aer": {"correctable": [0, 0], "nonfatal": [0, 0], "fatal": [0, 0]},
                        }
                        for bdf, kind in ((ROOTS[i // 2], "root"), (SWITCHES[i // 2], "upstream"), (BUSES[i], "gpu"))
                    ],
                    "nvlink": None,
                }
                for i in range(8)
            ],
            "health": [
                {
                    "gpu": i, "ecc_uncorrected": 0, "recovery_action": "None", "remapped_pending": False,
                    "processes": 0, "memory_used": 0, "utilization": 0,
                }
                for i in range(8)
            ],
            "nvml": {"available": True, "driver_version": "595.58.03", "count": 8, "lost": None},
            "collectives": {
                "state": "measured", "why": "", "library": "libnccl.so.2", "nccl_version": "2.29.2", "ranks": 8,
                "points": points, "detail": None,
            },
        },
        "surroundings": {
            "machine": {
                "kernel": "6.17.0-20-pve", "board": "SAMPLE-8", "product": "SAMPLE", "bios_version": "1.2",
            },
        },
        "host_facts": {
            "schema": "rackwell.gpu_host/1", "host": "pve1", "kernel": "6.17.0-20-pve", "cmdline": "iommu=off",
            "dmi": {"board": "SAMPLE-8", "product": "SAMPLE", "bios_version": "1.2", "bios_date": "01/02/2026"},
            "iommu": {"mode": "off", "groups": 0, "evidence": "no groups"}, "hmm": False,
        },
        "baseline": {
            "state": "used", "path": "/var/lib/rackwell/baseline/gpu.json", "digest": "ab" * 32,
            "recorded": "2026-11-01T10:00:00Z", "differences": [],
        },
        "problems": [],
    }  # fmt: skip


def judged(report: Report, *findings: Report) -> Report:
    """The report with these findings, and the verdicts that follow."""
    order = ["not-measured", "pass", "degraded", "fail"]
    for item in findings:
        row = next(row for row in report["checks"] if row["id"] == item["check"])
        if order.index(item["verdict"]) > order.index(row["verdict"]) or row["verdict"] == "pass":
            row |= {"verdict": item["verdict"], "code": item["code"], "summary": item["what"]}
            row |= {key: item[key] for key in ("measured", "expected", "unit", "basis")}
        if item["verdict"] != "not-measured":
            report["verdict"] = max(report["verdict"], item["verdict"], key=order.index)
    report["findings"] = list(findings)
    keys = ("code", "what", "where", "why", "fix")
    report["problems"] = [{k: f[k] for k in keys} for f in findings if f["verdict"] in {"fail", "degraded"}]
    return report


def slow(report: Report, which: Callable[[int, int], bool], factor: float) -> Report:
    for row in report["measurements"]["p2p"]["bandwidth"]:
        if which(row["src"], row["dst"]):
            row["samples"] = [round(value * factor, 2) for value in row["samples"]]
            row["gb_per_s"] = round(row["gb_per_s"] * factor, 2)
    return report


def not_measured(report: Report, since: str, why: str) -> Report:
    """Everything from check `since` on was not measured."""
    idents = [row["id"] for row in report["checks"]]
    for row in report["checks"][idents.index(since) :]:
        row |= {"verdict": "not-measured", "code": "not-measured", "summary": why}
    return report


def slow_pair() -> Report:
    report = slow(healthy(), lambda s, d: {s, d} == {2, 5}, 1 / 3)
    return judged(
        report,
        finding(
            "p2p-slow-pair", "p2p.bandwidth", "fail", "the pair of GPU 2 and GPU 5 copies at 12.8 GB/s",
            where="0000:75:00.0 - 0000:85:00.0", measured=12.8, expected=30.0, unit="GB/s", basis="floor",
            why="the floor of cross-socket pairs is 30 GB/s; the other pairs of both GPUs reach it",
            fix="compare the routes of this pair with lspci -vvv on the Proxmox host; measure again after a reboot",
            pairs=[[2, 5], [5, 2]],
        ),
    )  # fmt: skip


def slow_direction() -> Report:
    report = slow(healthy(), lambda s, d: (s, d) == (1, 6), 0.5)
    return judged(
        report,
        finding(
            "p2p-slow-direction", "p2p.bandwidth", "degraded", "GPU 1 to GPU 6 copies at 19.2 GB/s, back at 38.4",
            measured=19.2, expected=30.0, unit="GB/s", basis="floor", why="one direction only", fix="look at the host",
            pairs=[[1, 6]],
        ),
    )  # fmt: skip


def corrupt_one_way() -> Report:
    report = healthy()
    for row in report["measurements"]["p2p"]["data"]:
        if (row["src"], row["dst"]) == (3, 4):
            row |= {"ok": False, "wrong": 8192, "first": 4096, "kind": "dropped"}
    return judged(
        report,
        finding(
            "p2p-corrupt-one-way", "p2p.data", "fail", "what GPU 3 sends to GPU 4 arrives wrong: 8192 words dropped",
            where="0000:76:00.0 -> 0000:84:00.0", measured=8192, expected=0, unit="wrong words",
            why="writes over this route are dropped without an error: an IOMMU in translated mode does that",
            fix="switch the IOMMU off or to passthrough on the Proxmox host and reboot it: iommu=pt", pairs=[[3, 4]],
        ),
    )  # fmt: skip


def link_generation() -> Report:
    report = slow(healthy(), lambda s, d: 6 in (s, d), 0.14)
    link = report["measurements"]["links"][6]
    link["gen_load"] = 2
    link["ports"][2]["speed_gt_s"] = 5.0
    pair = [[6, d] for d in range(8) if d != 6] + [[s, 6] for s in range(8) if s != 6]
    return judged(
        report,
        finding(
            "link-generation", "links", "fail", "GPU 6 runs at Gen2 under load, Gen5 is possible",
            where="0000:f4:00.0", measured=2, expected=5, unit="generation", why="the link was trained down",
            fix="reseat the card, look for Hardware Autonomous Speed Disable, cold start the machine", gpus=[6],
            consequences=[
                finding(
                    "p2p-slow-gpu", "p2p.bandwidth", "fail", "all pairs of GPU 6 are slow: 7.4 GB/s",
                    measured=7.4, expected=45.0, unit="GB/s", basis="floor", gpus=[6], pairs=pair,
                )
            ],
        ),
    )  # fmt: skip


def acs_on() -> Report:
    report = slow(healthy(), lambda s, d: link_class(s, d) != "same-switch", 0.3)
    crossing = [list(pair) for pair in pairs() if link_class(*pair) != "same-switch"]
    report["checks"][6] |= {"verdict": "fail", "code": "acs-on", "summary": "48 pairs below their floor: see acs-on"}
    return judged(
        report,
        finding(
            "acs-on", "host", "fail", "ACS redirects peer traffic on 12 ports", where="pve1: 0000:02:03.0 and 11 more",
            measured=12, expected=0, unit="ports", why="requests between GPUs go up to the root complex and back",
            fix="clear ACSCtl on these ports at each boot: setpci -s BDF ECAP_ACS+0x6.w=0000",
            consequences=[
                finding(
                    "p2p-slow-cross-root", "p2p.bandwidth", "fail", "48 pairs that cross a root port are slow",
                    measured=16.0, expected=45.0, unit="GB/s", basis="floor", pairs=crossing,
                )
            ],
        ),
    )  # fmt: skip


def collapse() -> Report:
    report = healthy()
    report["measurements"]["p2p"]["concurrent"][3] |= {
        "samples": [2.7, 2.7, 2.8], "gb_per_s": 2.7, "flow_gb_per_s": [0.7, 0.7, 0.7, 0.6],
    }  # fmt: skip
    return judged(
        report,
        finding(
            "p2p-concurrent-collapse", "p2p.concurrent", "fail", "4 writes behind other roots at once: 2.7 GB/s in sum",
            measured=2.7, expected=49.0, unit="GB/s", why="posted writes block each other in the switches",
            fix="NCCL_P2P_LEVEL=PXB keeps writes below their switch", pairs=[[0, 4], [1, 6], [2, 5], [3, 7]],
        ),
    )  # fmt: skip


def uvm_missing() -> Report:
    report = not_measured(healthy(), "cuda", "because CUDA cannot start without /dev/nvidia-uvm")
    report["measurements"] = {"cuda": {"steps": [], "devices": []}}
    report["checks"][3] |= {"verdict": "fail"}
    return judged(
        report,
        finding(
            "uvm-node-missing", "nodes", "fail", "/dev/nvidia-uvm is missing", where="/dev/nvidia-uvm",
            why="the container started before the node was there", fix="on pve1: nvidia-modprobe -u; pct reboot 201",
            consequences=[finding("cuda-unknown", "cuda", "fail", "cuInit answers 999 CUDA_ERROR_UNKNOWN")],
        ),
    )  # fmt: skip


def allreduce_hang() -> Report:
    report = healthy()
    report["measurements"]["collectives"] |= {"state": "hung", "points": [], "why": "no end after 60 s"}
    return judged(
        report,
        finding(
            "allreduce-hang", "collectives", "fail", "the allreduce of 8 ranks did not end within 60 s",
            why="NCCL waits for a peer", fix="NCCL_P2P_DISABLE=1 shows whether it is peer access", gpus=list(range(8)),
        ),
    )  # fmt: skip


def below_baseline() -> Report:
    report = slow(healthy(), lambda s, d: s == 4 or d == 4, 0.92)
    return judged(
        report,
        finding(
            "link-below-baseline", "baseline", "degraded", "GPU 4's link is 8.1 % below its baseline",
            where="0000:84:00.0", measured=47.1, expected=51.2, unit="GB/s", basis="baseline",
            why="14 pairs of it are slower by 7.2 to 8.9 %", fix="look at links and replays, or record anew",
            gpus=[4],
        ),
    )  # fmt: skip


def foreign_baseline() -> Report:
    report = healthy()
    report["baseline"] |= {
        "state": "refused", "differences": [{"fact": "gpus", "then": "GPU-ffff", "now": uuid(0)}],
    }  # fmt: skip
    return judged(
        report,
        finding(
            "baseline-foreign", "baseline", "degraded", "the baseline is of another machine: gpus differ",
            where="/var/lib/rackwell/baseline/gpu.json", fix="rackwell baseline record glm5-01", measured=None,
        ),
    )  # fmt: skip


def beside_server() -> Report:
    report = healthy()
    report["beside_server"] = True
    for row in report["checks"]:
        if row["id"] in {"p2p.concurrent", "collectives"}:
            row |= {"verdict": "not-measured", "summary": "not measured because a server runs on these GPUs"}
    report["measurements"]["p2p"]["concurrent"] = []
    report["measurements"]["collectives"] = {"state": "skipped", "why": "a server runs on these GPUs", "points": []}
    return report


def quick() -> Report:
    report = healthy()
    report["mode"], report["seconds"] = "quick", 6.1
    p2p = report["measurements"]["p2p"]
    p2p["bandwidth"] = [r for r in p2p["bandwidth"] if (r["engine"], r["op"], r["ways"]) == ("copy", "write", 1)][::3]
    p2p |= {"latency": [], "concurrent": []}
    report["measurements"]["collectives"] = {"state": "skipped", "why": "quick mode", "points": []}
    for row in report["checks"]:
        if row["id"] in {"p2p.latency", "p2p.concurrent", "collectives"}:
            row |= {"verdict": "not-measured", "summary": "not measured because of quick mode"}
    return report


def nvlink_pair() -> Report:
    """2 GPUs behind NVLink in a virtual machine: no root port, no switch, no node, no host facts."""
    report = healthy()
    report["gpus"] = [
        gpu
        | {
            "name": "NVIDIA H200 (sample)",
            "bus_id": f"0000:00:0{6 + i}.0",
            "switch": None,
            "root": None,
            "numa": None,
            "path": [],
        }
        for i, gpu in enumerate(report["gpus"][:2])
    ]
    report["topology"] = {
        "sockets": [{"numa": None, "roots": [{"root": None, "switches": [], "gpus": [0, 1]}]}],
        "classes": [[None, "nvlink"], ["nvlink", None]],
        "nvlink": [[0, 18], [18, 0]],
    }
    p2p = report["measurements"]["p2p"]
    for key in ("capability", "data", "bandwidth", "latency"):
        p2p[key] = [row for row in p2p[key] if row["src"] < 2 and row["dst"] < 2]
    for row in p2p["bandwidth"]:
        row["gb_per_s"] = round(row["gb_per_s"] * 7.35, 1)
    p2p["concurrent"] = [
        row | {"flows": [[0, 1]], "flow_gb_per_s": [393.0], "gb_per_s": 393.0} for row in p2p["concurrent"][:1]
    ]
    p2p["memory"] = [{"gpu": i, "gb_per_s": 4100.0} for i in range(2)]
    for key in ("links", "health"):
        report["measurements"][key] = report["measurements"][key][:2]
    report["host_facts"] = None
    report["baseline"] = {"state": "absent", "path": None, "digest": None, "recorded": None, "differences": []}
    return report


ALL: dict[str, Callable[[], Report]] = {
    "healthy": healthy,
    "slow-pair": slow_pair,
    "slow-direction": slow_direction,
    "corrupt-one-way": corrupt_one_way,
    "link-generation": link_generation,
    "acs-on": acs_on,
    "collapse": collapse,
    "uvm-missing": uvm_missing,
    "allreduce-hang": allreduce_hang,
    "below-baseline": below_baseline,
    "foreign-baseline": foreign_baseline,
    "beside-server": beside_server,
    "quick": quick,
    "nvlink-pair": nvlink_pair,
}


def baseline(report: Report | None = None, runs: int = 5, noise: float = 0.004) -> Report:
    """The baseline that `report` gives when it is measured `runs` times."""
    report = report or healthy()
    dice = random.Random(runs)
    uuids = {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]}
    once = regression.values_of(report["measurements"], uuids.__getitem__)
    measured = [{key: value * dice.gauss(1, noise) for key, value in once.items()} for _ in range(runs)]
    return baselines.build(baselines.machine_of(report), measured, "2026-11-01T10:00:00Z")


def sealed(document: Report) -> Report:
    """A baseline that was changed on purpose, with the digest that it has now."""
    return document | {"digest": baselines.digest(document)}


def gate(report: Report | None = None) -> Report:
    """The boot gate's verdict with that report."""
    report = report or healthy()
    held = report["verdict"] == "fail"
    first = report["findings"][0] if report["findings"] else {"code": "ok", "what": "", "fix": ""}
    return {
        "schema": "rackwell.gate/1",
        "verdict": report["verdict"],
        "held": held,
        "boot_id": report["boot_id"],
        "started": report["started"],
        "seconds": 6.1,
        "mode": "quick",
        "code": first["code"],
        "line": f"{first['code']}: {first['what']}; {first['fix']}" if held else "gate passed",
        "report": copy.deepcopy(report),
    }
