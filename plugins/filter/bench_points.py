# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filter that turns a benchmark sweep into its points."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any, Callable

#: what a sweep measures that does not say
CONCURRENCY = [1, 16, 64, 256, 512, 1024]


def point_seed(base: int, salt: str, load: tuple[int, int, int], repeat: int, num_prompts: int) -> int:
    """The seed of a point's prompts, 31 bits: another one for each load, repeat, number of prompts and run.

    A run whose prompts were asked before measures the server's prefix cache.

    Args:
        base: of the sweep. salt: of the run. load: tokens of prompt and answer, streams.
    """
    parts = (base, salt, *load, repeat, num_prompts)
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def bench_points(sweep: Mapping[str, Any], salt: str) -> list[dict[str, int]]:
    """Every point of a sweep in the order in which it is measured: all loads, then all of them again.

    Args:
        sweep: what ``bench/NAME.yml`` says. salt: what tells this run's prompts from those of every other.
    """

    def numbers(value: Any) -> list[int]:
        return [int(one) for one in (value if isinstance(value, list) else [value])]

    lengths = itertools.product(numbers(sweep["input_tokens"]), numbers(sweep["output_tokens"]))
    loads = [(*pair, streams) for pair in lengths for streams in numbers(sweep.get("concurrency", CONCURRENCY))]
    per_stream, base = int(sweep.get("prompts_per_stream", 4)), int(sweep.get("seed", 1))
    return [
        {
            "input_tokens": load[0],
            "output_tokens": load[1],
            "concurrency": load[2],
            "repeat": repeat,
            "num_prompts": load[2] * per_stream,
            "seed": point_seed(base, salt, load, repeat, load[2] * per_stream),
        }
        for repeat in range(1, int(sweep.get("repeats", 1)) + 1)
        for load in loads
    ]


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"bench_points": bench_points}
