# SPDX-License-Identifier: Apache-2.0
"""``rackwell rules``: the rules of `rackwell diagnose`, for those who read, write and test them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import JsonOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal
    from rackwell.diagnose.examples import Scored
    from rackwell.diagnose.rules import Rule

OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="ID|AREA", help="Only this rule, or this area. Repeatable.")
]
CatalogOption = Annotated[
    Path | None,
    typer.Option("--catalog", metavar="DIR", help="Another catalogue: a directory with rules/diagnose."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List, show and test the rules of `rackwell diagnose`.", no_args_is_help=True)
    group.command("list")(list_rules)
    group.command("show")(show)
    group.command("test")(examples)
    group.command("score")(score)
    group.command("page")(page)
    app.add_typer(group, name="rules")


def _rules(catalog: Path | None) -> list[Rule]:
    from rackwell import shipped
    from rackwell.diagnose.rules import load_rules

    return load_rules(catalog or shipped.catalog())


def _wanted(rule: Rule, only: list[str] | None) -> bool:
    return not only or any(rule.id == word or rule.area == word or rule.id.startswith(f"{word}-") for word in only)


def list_rules(only: OnlyOption = None, catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """All rules: area, rank, severity, title."""

    def body(terminal: Terminal) -> Outcome:
        from rackwell.cli import tables
        from rackwell.cli.output import Outcome

        del terminal
        rules = [rule for rule in _rules(catalog) if _wanted(rule, only)]
        rules.sort(key=lambda rule: (rule.area, -rule.level, rule.id))
        result = {
            "rules": [
                {"id": r.id, "area": r.area, "rank": r.level, "severity": r.severity, "title": r.title} for r in rules
            ]
        }
        rows = [[rule.area, str(rule.level), rule.severity, rule.id, rule.title] for rule in rules]
        head = ["area", "rank", "severity", "rule", "what"]
        return Outcome(result, show=lambda out: tables.table(out, head, rows))

    execute("rules", as_json, body)


def show(
    name: Annotated[str, typer.Argument(metavar="ID")], catalog: CatalogOption = None, as_json: JsonOption = False
) -> None:
    """One rule in full, as its file says it."""

    def body(terminal: Terminal) -> Outcome:
        from rackwell import shipped
        from rackwell.cli.output import Outcome
        from rackwell.diagnose.rules import folder
        from rackwell.errors import ExitCode, Problem, RackwellError
        from rackwell.site.validation import suggest

        del terminal
        rules = {rule.id: rule for rule in _rules(catalog)}
        rule = rules.get(name)
        if rule is None:
            hint = suggest(name, sorted(rules), 0.6) or "see: rackwell rules list"
            raise RackwellError(Problem("unknown-rule", f"there is no rule '{name}'", "", "", hint), ExitCode.INVALID)
        path = folder(catalog or shipped.catalog()) / rule.area / f"{rule.id}.yml"
        text = path.read_text(encoding="utf-8").rstrip()
        return Outcome({"rule": rule.model_dump(by_alias=True), "file": str(path)}, show=lambda out: out.print(text))

    execute("rules", as_json, body)


def examples(only: OnlyOption = None, catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """Run the examples of the rules against all rules. Exit code 1 when one fails, or another rule is first on it."""

    def body(terminal: Terminal) -> Outcome:
        from rackwell.cli.output import Outcome
        from rackwell.diagnose.examples import faults as found
        from rackwell.diagnose.run import Diagnoser
        from rackwell.errors import ExitCode

        del terminal
        diagnoser = Diagnoser(_rules(catalog))
        faults = list(found(diagnoser, lambda rule: _wanted(rule, only)))
        count = sum(_wanted(rule, only) for rule in diagnoser.rules)
        bad = [fault for fault in faults if fault.kind != "no-clean"]
        result = {
            "rules": count,
            "faults": [
                {"rule": f.rule, "kind": f.kind, "example": f.example, "other": f.other, "what": str(f)} for f in faults
            ],
        }
        absent = sorted({fault.other for fault in faults if fault.kind == "no-rule"})
        lines = [f"{fault.kind:<8} {fault}" for fault in faults if fault.kind != "no-rule"]
        if absent:
            lines.append(f"no-rule  rules explain what is no rule: {', '.join(absent)}")
        lines.append(f"{count} rules: {len(bad)} faults, {len(faults) - len(bad)} without a clean example")
        return Outcome(
            result, [], ExitCode.FAILED if bad else ExitCode.DONE, show=lambda out: out.print("\n".join(lines))
        )

    execute("rules", as_json, body)


def score(
    cases: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines with `input`, and `id`, `area`, `cause`, `severity`.")
    ],
    area: Annotated[list[str] | None, typer.Option("--area", help="Only cases of this area. Repeatable.")] = None,
    suspicious: Annotated[bool, typer.Option("--suspicious", help="Only what is surely not right.")] = False,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the rules say to known cases, beside what is known of them. A person judges whether that is the same."""

    def body(terminal: Terminal) -> Outcome:
        import dataclasses
        import json

        from rackwell.cli.output import Outcome
        from rackwell.diagnose import examples
        from rackwell.diagnose.run import Diagnoser

        del terminal
        diagnoser = Diagnoser(_rules(catalog))
        given = [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines() if line.strip()]
        scored = [examples.score(diagnoser, case) for case in given if not area or case.get("area") in area]
        unknown = sum(not each.first for each in scored)
        odd = sum(bool(each.suspicious) for each in scored)
        last = f"{len(scored)} cases: {len(scored) - unknown} with a finding, {unknown} unknown, {odd} surely not right"
        shown = [each for each in scored if each.suspicious or not suspicious]
        return Outcome(
            {"cases": [{**dataclasses.asdict(each), "suspicious": each.suspicious} for each in scored]},
            show=lambda out: out.print("\n".join([*map(_scored, shown), last])),
        )

    execute("rules", as_json, body)


def _scored(case: Scored) -> str:
    lines = [f"{case.suspicious.upper() or 'look':<8} {case.id} [{case.area}]"]
    also = f" (also {', '.join(case.others)})" if case.others else ""
    lines.append(f"  found    {case.first or '-'} {case.confidence}{also}")
    lines.append(f"  says     {case.cause or '-'}")
    lines.append(f"  cause    {case.expected_cause}")
    lines.append(f"  does     {case.remedy or '-'}")
    lines.append(f"  remedy   {case.expected_remedy}")
    return "\n".join(lines)


def page(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the page goes.")],
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """All rules as one HTML page that can be searched, and that asks nothing of any network."""

    def body(terminal: Terminal) -> Outcome:
        from rackwell.cli.output import Outcome
        from rackwell.diagnose import rulepage
        from rackwell.errors import Problem, RackwellError

        del terminal
        rules = _rules(catalog)
        try:
            out.write_text(rulepage.render(rules), encoding="utf-8")
        except OSError as error:
            raise RackwellError(Problem("no-output", f"{out} cannot be written", "", error.strerror or "")) from error
        return Outcome(
            {"file": str(out), "rules": len(rules)}, show=lambda shown: shown.print(f"{len(rules)} rules in {out}")
        )

    execute("rules", as_json, body)
