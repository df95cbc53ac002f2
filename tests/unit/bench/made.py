# SPDX-License-Identifier: Apache-2.0
"""A made-up measurement of known figures: the client's line, the watch's report, the server's metrics, the record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_clients, bench_reading, bench_unit

from .conftest import OPTIONS, ORIGIN, record

#: the window opens here on the monotonic clock
BEGIN = ORIGIN + 5.0


class Server:
    """A server that lived through it."""

    unit = "rackwell-inference.service"

    def __init__(self, answers: list[dict[str, str]] | None = None) -> None:
        self.known = answers or []

    def state(self) -> str:
        return "1"

    def answers(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return []

    def known_answer(self, _sane: object, _when: str) -> list[dict[str, str]]:
        return self.known


class Run:
    """``streams`` streams with ``each`` requests one after the other; all of them begin together.

    A request has its first token after ``ttft`` seconds, then ``tokens - 1`` more, ``gap`` seconds apart. Change the
    parts before :meth:`read`.
    """

    def __init__(
        self, streams: int = 16, each: int = 3, tokens: int = 101, ttft: float = 1.0, gap: float = 0.1
    ) -> None:
        count, length = streams * each, ttft + gap * (tokens - 1)
        self.seconds = each * length
        self.starts: list[Any] = [BEGIN + (i // streams) * length for i in range(count)]
        self.options = {**OPTIONS, "concurrency": streams, "num_prompts": count, "output_tokens": tokens}
        self.line: dict[str, Any] = {
            "duration": self.seconds,
            "completed": count,
            "total_input_tokens": 128 * count,
            "total_output_tokens": tokens * count,
            "total_output_tokens_retokenized": tokens * count,
            "request_throughput": count / self.seconds,
            "input_throughput": 128 * count / self.seconds,
            "output_throughput": tokens * count / self.seconds,
            "total_throughput": (128 + tokens) * count / self.seconds,
            "concurrency": float(streams),
            "input_lens": [128] * count,
            "output_lens": [tokens] * count,
            "ttfts": [ttft] * count,
            "itls": [[gap] * (tokens - 1) for _ in range(count)],
            "generated_texts": [f"words of answer {i}" for i in range(count)],
            "errors": [""] * count,
            "server_info": {"version": "0.5.9", "api_key": "sk-secret"},
        }
        self.watch: dict[str, Any] = {
            "period": 0.02,
            "lag": [[BEGIN + i * 0.02, 0.0005] for i in range(int(self.seconds / 0.02))],
            "phases": [
                {"begin": BEGIN, "end": BEGIN + self.seconds, "cpu_begin": 3.0, "cpu_end": 3.0 + self.seconds * 0.2}
            ],
            "flush": [{"at": BEGIN - 1.1, "status": 200, "seconds": 0.01}],
        }
        self.record = record(lambda _t, _gpu: 250.0, seconds=self.seconds + 10, start=4.0, gpus=2)
        self.record["hz"] = 5.0
        for sample in self.record["samples"]:
            for reading in sample["gpus"]:
                reading.update(throttle_reasons=0x4, memory_clock_mhz=12000, memory_utilization_pct=40)
                reading["utilization_pct"] = 97 if sample["t"] > BEGIN else 0
        self.record["lines"].append({"t": BEGIN - 1.5, "text": "Starting warmup with 2 sequences..."})
        self.record["server"] = {
            "source": "/metrics",
            "samples": [self.load(BEGIN - 2 + i, streams) for i in range(int(self.seconds) + 5)],
            "cpu": [{"t": BEGIN + i, "pct": 30.0} for i in range(int(self.seconds))],
            "clocks": [[BEGIN - 2 + i, 1796000003.0 + i] for i in range(int(self.seconds) + 5)],
        }
        self.context: dict[str, Any] = {"server": "1", "flush": {"status": 200}}
        self.server = Server()

    def load(self, moment: float, streams: int) -> dict[str, Any]:
        """A sample of the server's metrics."""
        busy = BEGIN <= moment <= BEGIN + self.seconds
        done = min(max(0.0, moment - BEGIN), self.seconds) / self.seconds
        return {
            "t": moment,
            "running": streams if busy else 0,
            "queued": 0,
            "kv_usage": 0.25,
            "prompt_tokens": 5000 + 6144 * done,
            "cached_tokens": 1000,
        }

    def read(self, folder: Path) -> dict[str, Any]:
        """What the module makes of it."""
        client = folder / bench_unit.CLIENT
        client.mkdir()
        (folder / "context.json").write_text(json.dumps(self.context))
        (client / "outcome").write_text("success exited 0\n")
        (client / "out.jsonl").write_text(json.dumps(self.line) + "\n")
        (client / "telemetry.json").write_text(json.dumps(self.record))
        (client / "loadgen.json").write_text(json.dumps({"starts": self.starts, **self.watch}))
        reading = bench_reading.Reading(str(folder), self.options, bench_clients.Client("/"), self.server, os.geteuid())
        found = reading.read()
        json.dumps(found, allow_nan=False)
        assert reading.read() == found, "what was packed reads the same again"
        return found


def codes(result: dict[str, Any]) -> list[str]:
    """Codes of the reasons for which it does not count."""
    return [reason["code"] for reason in result["reasons"]]
