# SPDX-License-Identifier: Apache-2.0
"""Benchmark sweeps: what may be left out, what is refused with its line, and that old files mean what they meant."""

from __future__ import annotations

import pytest
from sitemaker import SiteMaker

from rackwell.errors import RackwellError
from rackwell.site.benchfile import BenchProfile, Load

OLD = {"concurrency": [4, 16], "input_tokens": 128, "output_tokens": 64, "seed": 1, "warmup_requests": 2}


def test_a_file_of_before_means_what_it_meant() -> None:
    sweep = BenchProfile.model_validate(OLD)
    assert sweep.loads() == [Load(128, 64, 4), Load(128, 64, 16)]
    assert (sweep.repeats, sweep.prompts_per_stream, sweep.client, sweep.longest) == (1, 4, "bench-client", 192)


def test_only_the_lengths_must_be_said_and_all_combinations_are_measured() -> None:
    sweep = BenchProfile.model_validate({"input_tokens": [512, 64], "output_tokens": [16, 32]})
    assert sweep.concurrency == [1, 16, 64, 256, 512, 1024]
    assert [(load.input_tokens, load.output_tokens) for load in sweep.loads()[::6]] == [
        (512, 16),
        (512, 32),
        (64, 16),
        (64, 32),
    ]
    assert sweep.longest == 544


@pytest.mark.parametrize(
    ("line", "key", "why"),
    [
        ("output_tokens: [64, 0]", "output_tokens.1", "1"),
        ("concurrency: 4, 16", "concurrency", "integer"),
        ("repeats: 101", "repeats", "100"),
        ("repeats: 100\nprompts_per_stream: 1\nclient: nobody", "client", "bench-client"),
        ("min_seconds: 900", "point_timeout", "more than min_seconds"),
    ],
)
def test_a_mistake_is_told_with_its_place(site: SiteMaker, line: str, key: str, why: str) -> None:
    text = "concurrency: [1, 2]\ninput_tokens: 128\noutput_tokens: 64\n"
    name = line.partition(":")[0]
    kept = "".join(f"{one}\n" for one in text.splitlines() if not one.startswith(f"{name}:"))
    site.write("bench/quick.yml", kept + line + "\n")
    (problem,) = site.problems()
    assert f"'{key}'" in problem.what
    assert why in problem.why
    assert problem.where.startswith(f"{site.root / 'bench/quick.yml'}:")


def test_too_many_points_are_refused(site: SiteMaker) -> None:
    site.write("bench/quick.yml", "input_tokens: [1, 2, 3, 4]\noutput_tokens: 1\nrepeats: 100\n")
    (problem,) = site.problems()
    assert "2400 points" in problem.why


def test_a_sweep_that_nobody_declares_is_checked_and_keeps_no_container_from_work(site: SiteMaker) -> None:
    path = site.write("bench/full.yml", "input_tokens: 1\noutput_tokens: 1\nconcurency: [1]\n")
    loaded = site.load()
    (problem,) = loaded.problems_of()
    assert (problem.where, problem.fix) == (f"{path}:3", "did you mean 'concurrency'?")
    assert loaded.problems_of("glm5-01", "pve1") == []
    with pytest.raises(RackwellError):
        loaded.bench(loaded.container("glm5-01"), "full")
