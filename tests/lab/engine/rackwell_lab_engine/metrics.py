# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: the Prometheus text of /metrics, with the names of the original."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    20.0,
    40.0,
    60.0,
)


class Histogram:
    """Counts of observed seconds by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect.bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def render(self, name: str, help_text: str, label: str) -> list[str]:
        """The histogram's lines."""
        lines = [f"# HELP {name} {help_text}", f"# TYPE {name} histogram", f"{name}_sum{{{label}}} {self.total}"]
        running = 0
        for bound, count in zip((*(str(b) for b in _SECONDS), "+Inf"), self.counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{{{label},le="{bound}"}} {float(running)}')
        lines.append(f"{name}_count{{{label}}} {float(running)}")
        return lines


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.requests = 0
        self.aborted = 0
        self.time_to_first_token = Histogram()
        self.inter_token = Histogram()
        self.end_to_end = Histogram()

    def render(self, model_name: str, gauges: Mapping[str, float]) -> str:
        """The whole text.

        Args:
            gauges: present values by name without the ``sglang:`` prefix.
        """
        label = f'engine_type="unified",model_name="{model_name}"'
        rank = f'{label},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        lines: list[str] = []
        for histogram, name, text in (
            (self.time_to_first_token, "time_to_first_token_seconds", "Histogram of time to first token in seconds."),
            (self.inter_token, "inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
            (self.end_to_end, "e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds"),
        ):
            lines += histogram.render(f"sglang:{name}", text, label)
        for name, value in (
            ("prompt_tokens_total", self.prompt_tokens),
            ("generation_tokens_total", self.generation_tokens),
            ("cached_tokens_total", self.cached_tokens),
            ("num_requests_total", self.requests),
            ("num_aborted_requests_total", self.aborted),
        ):
            lines += [f"# TYPE sglang:{name} counter", f"sglang:{name}{{{label}}} {float(value)}"]
        for name, gauge in gauges.items():
            lines += [f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{rank}}} {float(gauge)}"]
        return "\n".join(lines) + "\n"
