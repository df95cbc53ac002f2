# SPDX-License-Identifier: Apache-2.0
"""Documents about GPUs: what is read, what is refused, and the schemas that are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rackwell.errors import RackwellError
from rackwell.topology import gate, model, schemas
from rackwell.topology.report import GpuReport

from . import samples
from .conftest import report

DOCS = Path(__file__).parents[3] / "docs" / "schemas"


@pytest.mark.parametrize("name", sorted(schemas.MODELS))
def test_the_published_schema_is_that_of_the_code(name: str) -> None:
    published = (DOCS / f"rackwell.{name}.json").read_text()
    assert published == schemas.PUBLISHED.text(name), "renew it: python -m rackwell.topology.schemas docs/schemas"


@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_every_sample_holds_against_the_schema_and_comes_back_whole(name: str) -> None:
    raw = samples.ALL[name]()
    jsonschema.validate(raw, schemas.PUBLISHED.schema("gpu"))
    read = GpuReport.model_validate(raw)
    assert [check.id for check in read.checks] == [check["id"] for check in raw["checks"]]
    assert GpuReport.model_validate_json(read.model_dump_json(by_alias=True)) == read


def test_baseline_and_gate_hold_against_their_schemas() -> None:
    jsonschema.validate(samples.baseline(), schemas.PUBLISHED.schema("gpu_baseline"))
    jsonschema.validate(samples.gate(samples.slow_pair()), schemas.PUBLISHED.schema("gate"))


def add_everywhere(value: Any) -> Any:
    """The document as a later version might write it: an unknown key in every object."""
    if isinstance(value, dict):
        return {"of_a_later_version": {"x": 1}} | {key: add_everywhere(each) for key, each in value.items()}
    return [add_everywhere(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["healthy", "link-generation", "nvlink-pair"])
def test_unknown_keys_are_ignored_everywhere(name: str) -> None:
    raw = samples.ALL[name]()
    maps = {"surroundings", "host_facts"}  # free maps keep what is in them
    later = {key: value if key in maps else add_everywhere(value) for key, value in raw.items()}
    for link in later["measurements"]["links"]:
        for port in link["ports"]:
            port["aer"].pop("of_a_later_version")
    later["measurements"]["cuda"] = raw["measurements"]["cuda"]
    later["measurements"]["nvml"] = raw["measurements"]["nvml"]
    later["problems"] = raw["problems"]
    assert GpuReport.model_validate({**later, "of_a_later_version": []}) == GpuReport.model_validate(raw)


def test_a_report_without_most_of_it_is_read() -> None:
    bare = GpuReport.model_validate(
        {"schema": "rackwell.gpu/1", "verdict": "fail", "topology": None, "measurements": None}
    )
    assert (bare.count, bare.checks, bare.measurements.p2p) == (0, [], None)


@pytest.mark.parametrize("change", [{"schema": "rackwell.gpu/2"}, {"verdict": "fine"}, {"checks": [{"id": "x"}]}])
def test_what_is_no_report_is_refused_with_the_place(change: dict[str, Any]) -> None:
    with pytest.raises(RackwellError) as raised:
        model.parse(GpuReport, {**samples.healthy(), **change}, "glm5-01")
    problem = raised.value.problems[0]
    assert (problem.code, problem.where) == ("not-such-a-document", "glm5-01")
    assert next(iter(change)) in problem.why


def test_pairs_are_flagged_by_the_findings_that_are_about_them() -> None:
    assert set(report("slow-direction").flagged()) == {(1, 6)}
    assert set(report("slow-pair").flagged()) == {(2, 5), (5, 2)}
    found = report("link-generation")
    assert all(6 in pair for pair in found.flagged())
    assert len(found.flagged()) == 14
    assert found.flagged()[6, 0].code == "p2p-slow-gpu"
    # bandwidth says nothing of latency, and a collapse under concurrency nothing of a single pair
    assert found.flagged(latency=True) == {}
    assert report("collapse").flagged() == {}


def test_a_gate_from_text_or_object() -> None:
    raw = samples.gate(samples.uvm_missing())
    for form in (raw, json.dumps(raw), {**raw, "report": None}):
        found = gate.read(form)
        assert found is not None
        assert found.cell == "held: uvm-node-missing"
    for nothing in (None, "", "not json", "[]", {"schema": "rackwell.gate/1", "state": "absent"}, 3):
        assert gate.read(nothing) is None
    passed = gate.read(samples.gate())
    assert passed is not None
    assert (passed.cell, passed.problem("glm5-01", "again")) == ("pass", None)
