# SPDX-License-Identifier: Apache-2.0
"""The JSON that every command prints: fields may be added, none may vanish or change its type."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "topology"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cli"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "adopt"))

import outputs
import samples
import test_adopt_command as seen
from cli_rig import CONTAINER, DIGEST, ERROR, GPUS, HOST, SERVER, Rig, make_rig, release

from rackwell.provision import schemas

TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
NUMBER = {"type": ["number", "null"]}


def table(**fields: Any) -> dict[str, Any]:
    """An object with at least these fields."""
    return {"type": "object", "required": list(fields), "properties": fields}


def every(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


PROBLEM = table(
    code={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"}, what=TEXT, where=TEXT, why=TEXT, fix=TEXT
)
ENVELOPE = table(
    schema={"type": "string", "pattern": r"^rackwell\.[a-z]+/1$"},
    ok={"type": "boolean"},
    exit_code={"enum": [0, 1, 2, 3, 4, 5, 6, 130]},
    problems=every(PROBLEM),
    result={"type": "object"},
)
BENCH = table(
    measured={"type": "boolean"},
    valid={"type": "boolean"},
    bench=NULLABLE,
    run_id=NULLABLE,
    file=NULLABLE,
    report=NULLABLE,
    points=every(
        table(
            concurrency={"type": "integer"},
            valid={"type": "boolean"},
            output_tok_per_s=NUMBER,
            total_tok_per_s=NUMBER,
            ttft_p50_ms=NUMBER,
            power_w_all_gpus=NUMBER,
            mean_utilization_pct=NUMBER,
        )
    ),
)
RELEASE = table(
    build=TEXT, digest={"type": "string", "pattern": "^[0-9a-f]{64}$"}, path=TEXT, changed={"type": "boolean"}
)
DIFFERENCE = table(
    code={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    severity={"enum": ["error", "warning", "note"]},
    side={"enum": ["both", "machine", "declaration"]},
    key=TEXT,
    what=TEXT,
    where=TEXT,
    line=TEXT,
    found=TEXT,
    declared=TEXT,
    fix=TEXT,
)
DRIFT = table(
    container=TEXT,
    host=TEXT,
    exists={"type": ["boolean", "null"]},
    changed={"type": "boolean"},
    counts=table(error={"type": "integer"}, warning={"type": "integer"}, note={"type": "integer"}),
    drift=every(DIFFERENCE),
)
ADOPT = table(
    container=TEXT,
    host=TEXT,
    vmid={"type": "integer"},
    dry_run={"type": "boolean"},
    files=every(TEXT),
    declaration={"type": "object"},
    text=TEXT,
    untold=every(
        table(key=TEXT, what=TEXT, fix=TEXT, blocks={"type": "boolean"}, line=TEXT, number={"type": "integer"})
    ),
    oddities=every(table(code=TEXT, severity={"enum": ["warning", "note"]}, what=TEXT, line=TEXT, fix=TEXT)),
    notes=every(TEXT),
    proved={"type": "boolean"},
    drift={"anyOf": [DRIFT, {"type": "null"}]},
)
RESULTS: dict[str, dict[str, Any]] = {
    "provision": table(
        container=TEXT,
        host=TEXT,
        check={"type": "boolean"},
        changed={"type": "integer"},
        changes=every(table(host=TEXT, role=TEXT, task=TEXT, diff=TEXT)),
        hosts={"type": "object", "additionalProperties": table(ok={"type": "integer"}, changed={"type": "integer"})},
        releases=table(release=RELEASE, gpu_probe=RELEASE, bench_client=RELEASE),
        endpoint=table(url=TEXT, served_name=TEXT, inside_only={"type": "boolean"}, tunnel=TEXT),
        bench={"anyOf": [BENCH, {"type": "null"}]},
        bench_note=TEXT,
        routers=every(table(name=TEXT, url=TEXT, changed={"type": "integer"}, ok={"type": "boolean"})),
        staging={"type": "array"},
        cache={"type": ["object", "null"]},
        sandbox={"type": ["object", "null"]},
        log=TEXT,
        seconds={"type": "number"},
    ),
    "host": table(
        host=TEXT,
        check={"type": "boolean"},
        changed={"type": "integer"},
        changes=every(table(host=TEXT, role=TEXT, task=TEXT, diff=TEXT)),
        checks=every(table(item=TEXT, verdict=TEXT, evidence=TEXT, findings={"type": "array"})),
        log=TEXT,
        seconds={"type": "number"},
    ),
    "verify": table(
        container=TEXT,
        host=TEXT,
        verdict={"enum": ["pass", "degraded", "fail", "not-measured"]},
        checks=every(
            table(item=TEXT, verdict={"enum": ["pass", "degraded", "fail", "not-measured", "unknown"]}, evidence=TEXT)
        ),
        drift=every(DIFFERENCE),
        gate={"type": ["object", "null"]},
        report=NULLABLE,
        page=NULLABLE,
        reports={"type": "object"},
    ),
    "status": table(
        containers=every(
            table(
                container=TEXT,
                host=TEXT,
                host_state=TEXT,
                state=TEXT,
                release=TEXT,
                unit=TEXT,
                gate=TEXT,
                bench=TEXT,
                roll=TEXT,
            )
        ),
        routers=every(
            table(router=TEXT, url=TEXT, state=TEXT, workers={"type": "object"}, others=every(TEXT), why=TEXT)
        ),
    ),
    "bench": BENCH,
    "report": table(report=TEXT, container=TEXT, run_id=TEXT, valid={"type": "boolean"}),
    "check": table(
        site=TEXT,
        hosts=every(TEXT),
        containers=every(TEXT),
        accepted_risks=every(table(build=TEXT, patch=TEXT, reason=TEXT, where=TEXT)),
        findings=every(
            table(
                code={"type": "string", "pattern": "^RW[1-9][0-9]{2}$"},
                severity={"enum": ["error", "warning", "note"]},
                what=TEXT,
                where=TEXT,
                why=TEXT,
                fix=TEXT,
                ignored=TEXT,
            )
        ),
    ),
    "gc": table(
        dry_run={"type": "boolean"},
        containers=every(
            table(
                container=TEXT,
                kept=every(table(digest=TEXT, build=TEXT, why=every(TEXT))),
                removed=every(table(kind=TEXT, name=TEXT, build=TEXT)),
                bytes={"type": "integer"},
                available_before={"type": "integer"},
                available_after={"type": "integer"},
                notes=every(TEXT),
            )
        ),
        local={"type": ["object", "null"]},
    ),
    "cache": table(action={"enum": ["capture", "list", "show"]}, caches={"type": "array"}),
    "patches": table(
        action={"enum": ["list", "show", "verify", "new"]},
        patches=every(
            table(
                id=TEXT,
                path=TEXT,
                name=TEXT,
                project=TEXT,
                summary=TEXT,
                applies_to={"type": "object", "additionalProperties": TEXT},
                upstream_since=NULLABLE,
                needs_patches=every(TEXT),
                measured=every(table(setup=TEXT, result=TEXT, caveat=TEXT)),
                risk=TEXT,
                status={"enum": ["recommended", "neutral", "harmful"]},
            )
        ),
    ),
}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rig:
    made = make_rig(tmp_path, monkeypatch, capsys)
    reports = [
        ("ok", "pve1", "pve_host", {"rackwell_result": HOST}),
        ("ok", "glm5-01", "pve_container", {"changed": True, "rackwell_result": CONTAINER}),
        ("ok", "glm5-01", "gpu_probe", {"rackwell_result": GPUS}),
        ("ok", "glm5-01", "", {"rackwell_result": release(DIGEST)}),
        ("ok", "glm5-01", "inference_server", {"rackwell_result": SERVER}),
    ]
    made.machines.on("provision", *reports)
    made.machines.on("verify", *reports)
    return made


ARGUMENTS = {
    "provision": ["glm5-01"],
    "host": ["pve1"],
    "verify": ["glm5-01"],
    "status": [],
    "bench": ["glm5-01"],
    "report": [],
    "check": [],
    "patches": ["list"],
    "cache": ["list"],
    "gc": ["--local"],
}


@pytest.mark.parametrize("command", sorted(RESULTS))
def test_success(rig: Rig, command: str) -> None:
    if command == "report":
        rig.json("bench", "glm5-01")
    envelope = rig.json(command, *ARGUMENTS[command])
    jsonschema.validate(envelope, ENVELOPE)
    assert (envelope["schema"], envelope["ok"], envelope["problems"]) == (f"rackwell.{command}/1", True, [])
    jsonschema.validate(envelope["result"], RESULTS[command])


@pytest.mark.parametrize("command", ["provision", "verify", "status", "bench"])
def test_failure_on_the_machines(rig: Rig, command: str) -> None:
    rig.machines.on(command, ("failed", "glm5-01", "inference_server", {"rackwell_error": ERROR}))
    envelope = rig.json(command, *ARGUMENTS[command])
    jsonschema.validate(envelope, ENVELOPE)
    assert (envelope["ok"], envelope["exit_code"]) == (False, 1)
    jsonschema.validate(envelope["result"], RESULTS[command])


@pytest.mark.parametrize("command", ["provision", "verify", "status", "bench", "check", "build"])
def test_invalid_declaration(rig: Rig, command: str) -> None:
    rig.site.add("hosts.yml", "all: 1\n")
    envelope = rig.json(command, *ARGUMENTS.get(command, []))
    jsonschema.validate(envelope, ENVELOPE)
    assert (envelope["schema"], envelope["exit_code"]) == (f"rackwell.{command}/1", 2)


BASELINE = table(
    file=NULLABLE,
    recorded=NULLABLE,
    runs={"type": ["integer", "null"]},
    digest=NULLABLE,
    figures={"type": "integer"},
    machine={"type": ["object", "null"]},
)
HELD = table(
    report=TEXT,
    verdict={"enum": ["pass", "degraded", "not-measured"]},
    fits={"type": "boolean"},
    differences=every(table(fact=TEXT)),
    missing={"type": "integer"},
    deltas=every(
        table(
            name=TEXT,
            key=TEXT,
            then=NUMBER,
            now=NUMBER,
            change=NUMBER,
            loss=NUMBER,
            allowed=NUMBER,
            worse={"type": "boolean"},
        )
    ),
)


def test_baseline(rig: Rig) -> None:
    rig.machines.on("baseline", ("ok", "glm5-01", "gpu_probe", {"rackwell_result": samples.baseline()}))
    rig.json("verify", "glm5-01")
    for arguments, schema in (
        (["record", "glm5-01"], BASELINE),
        (["show", "glm5-01"], BASELINE),
        (["diff", "glm5-01"], {"allOf": [BASELINE, table(held=every(HELD))]}),
    ):
        envelope = rig.json("baseline", *arguments)
        jsonschema.validate(envelope, ENVELOPE)
        assert (envelope["schema"], envelope["ok"]) == ("rackwell.baseline/1", True), arguments
        jsonschema.validate(envelope["result"], schema)


def test_topology(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(outputs.topo())
    assert rig.run("topology", str(tmp_path / "topo.txt"), "--json") == 0
    envelope = json.loads(rig.out)
    jsonschema.validate(envelope, ENVELOPE)
    machine = table(
        place=TEXT,
        files=every(table(file=TEXT, tools=every(TEXT))),
        gpus=every(table(index={"type": "integer"}, bus_id=TEXT)),
        topology=table(sockets={"type": "array"}, classes={"type": "array"}),
        findings=every(table(code=TEXT, verdict=TEXT, what=TEXT)),
        facts={"type": "object"},
        outputs=every(table(tool=TEXT)),
    )
    jsonschema.validate(envelope["result"], table(machines=every(machine)))


LOAD = table(input_tokens={"type": "integer"}, output_tokens={"type": "integer"}, concurrency={"type": "integer"})
COMPARISON = table(
    baseline=every(TEXT),
    candidate=every(TEXT),
    min_effect={"type": "number"},
    noise={"type": "number"},
    confidence={"type": "number"},
    overall={"anyOf": [table(metric=TEXT, ratio=NUMBER, low=NUMBER, high=NUMBER, verdict=TEXT), {"type": "null"}]},
    rows=every(
        table(
            load=LOAD,
            metric=TEXT,
            unit=TEXT,
            baseline=NUMBER,
            candidate=NUMBER,
            ratio=NUMBER,
            low=NUMBER,
            high=NUMBER,
            verdict={"enum": ["faster", "slower", "same", "higher", "lower", "inconclusive", "not-comparable"]},
            why=TEXT,
        )
    ),
    rejected=every(table(side=TEXT, run_id=TEXT, load=LOAD, reasons=every(TEXT))),
    only_baseline=every(LOAD),
    only_candidate=every(LOAD),
    attribution=table(
        verdict={"enum": ["cause", "refused", "none"]},
        text=TEXT,
        cause={"type": ["object", "null"]},
        changes=every(table(part=TEXT, name=TEXT, before=TEXT, after=TEXT, text=TEXT)),
        unknown=every(TEXT),
    ),
    notes=every(TEXT),
)


def test_compare(rig: Rig) -> None:
    stored = rig.json("bench", "glm5-01")["result"]["file"]
    envelope = rig.json("compare", stored, stored)
    jsonschema.validate(envelope, ENVELOPE)
    assert (envelope["schema"], envelope["ok"]) == ("rackwell.compare/1", True)
    jsonschema.validate(envelope["result"], table(runs=every(TEXT), comparisons=every(COMPARISON)))


def test_adopt_and_drift(rig: Rig) -> None:
    """As the tests say, and as the published schemas do, with differences and without an answer."""
    differs = {**seen.DRIFT, "number": 7}
    rig.machines.on("drift", ("ok", "glm5-01", "pve_container", {"rackwell_result": {**CONTAINER, "drift": [differs]}}))
    found = [rig.json("drift", "glm5-01")]
    assert found[0]["result"]["counts"] == {"error": 1, "warning": 0, "note": 0}
    seen.machine(rig, {**seen.SEEN, "oddities": [{**seen.WARNING, "side": "machine"}]}, seen.NOTE)
    found += [rig.json("adopt", "pve1", "202", *more) for more in (["--dry-run"], [])]
    for envelope in found:
        jsonschema.validate(envelope, ENVELOPE)
        name = envelope["schema"].partition("/")[0].partition(".")[2]
        jsonschema.validate(envelope["result"], {"drift": DRIFT, "adopt": ADOPT}[name])
    rig.machines.on("drift", ("unreachable", "glm5-01", "pve_container", {"msg": "timed out"}))
    for envelope in [*found, rig.json("drift", "glm5-01"), rig.json("drift", "nobody")]:
        published = schemas.PUBLISHED.schema(envelope["schema"].partition("/")[0].partition(".")[2])
        jsonschema.validate(envelope, published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found[0], "exit_code": 7}, schemas.PUBLISHED.schema("drift"))


@pytest.mark.parametrize("name", sorted(schemas.MODELS))
def test_the_published_schemas_are_those_of_the_code(name: str) -> None:
    published = (Path(__file__).parents[2] / "docs/schemas" / f"rackwell.{name}.json").read_text(encoding="utf-8")
    assert published == schemas.PUBLISHED.text(name), "renew it: python -m rackwell.provision.schemas docs/schemas"


def test_verify_tells_the_drift(rig: Rig) -> None:
    """A row for what differs and what waits, none for a note; all of it in the JSON, as `drift` tells it."""
    report = {**CONTAINER, "drift": [seen.DRIFT, seen.WARNING, seen.NOTE]}
    rig.machines.on("verify", ("ok", "glm5-01", "pve_container", {"changed": True, "rackwell_result": report}))
    envelope = rig.json("verify", "glm5-01")
    jsonschema.validate(envelope["result"], RESULTS["verify"])
    rows = [row for row in envelope["result"]["checks"] if row["item"] == "drift"]
    assert [row["verdict"] for row in rows] == ["fail", "degraded"]
    assert rows[0]["evidence"] == "differs: memory is not what is declared (201.conf:7)"
    assert [one["severity"] for one in envelope["result"]["drift"]] == ["error", "warning", "note"]
    assert "differs" in rig.codes(envelope)
    assert envelope["exit_code"] == 1


def test_verify_of_a_host_has_the_form_of_a_container_s(rig: Rig) -> None:
    acs = {"item": "acs", "verdict": "pass", "evidence": "12 ports", "findings": []}
    looked = [
        {"schema": "rackwell.host_clock/1", "checks": [{**acs, "item": "clock"}]},
        {"schema": "rackwell.pve_platform/1", "checks": [acs]},
        HOST,
    ]
    rig.machines.on("host_verify", *(("ok", "pve1", "pve_host", {"rackwell_result": one}) for one in looked))
    envelope = rig.json("verify", "pve1")
    jsonschema.validate(envelope, ENVELOPE)
    jsonschema.validate(envelope["result"], RESULTS["verify"])


def test_usage_error(rig: Rig) -> None:
    envelope = rig.json("provision", "--nope")
    jsonschema.validate(envelope, ENVELOPE)
    assert envelope["exit_code"] == 2
