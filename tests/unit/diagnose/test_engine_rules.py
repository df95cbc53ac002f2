# SPDX-License-Identifier: Apache-2.0
"""The rules of the catalogue: each loads, finds what its examples say, and is first on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackwell.diagnose import diagnoser
from rackwell.diagnose.examples import Fault, of_rule
from rackwell.diagnose.rules import Rule, folder, load_rule, load_rules
from rackwell.errors import RackwellError

CATALOG = Path(__file__).parents[3] / "catalog"
FILES = sorted(folder(CATALOG).glob("*/*.yml"))
RULES = {rule.id: rule for rule in load_rules(CATALOG)}

GOOD = """\
id: nccl-test
area: nccl
title: An interface that is not there
severity: blocker
match:
  all:
    - 'set by environment to (?P<interface>\\S+)'
    - {after: 'with family \\d+', within: 200}
cause: The interface ${interface} does not exist.
remedy: Correct it.
examples:
  match: ["NCCL_SOCKET_IFNAME set by environment to eth2\\nwith family 59936"]
  clean: ["with family 59936"]
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_finds_what_its_examples_say(path: Path) -> None:
    known = list(RULES)
    faults: list[Fault] = list(of_rule(diagnoser(), RULES[path.stem], known))
    assert not faults, "\n".join(map(str, faults))


def test_the_fast_reading_and_the_careful_one_are_equal() -> None:
    for path in FILES[::25]:
        assert load_rule(path) == RULES[path.stem]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules" / "diagnose" / "nccl" / "nccl-test.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_rule_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    (rule,) = load_rules(tmp_path)
    assert isinstance(rule, Rule)
    assert rule.level == 50
    assert not rule.stays


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("severity: blocker", "severity: bad", 4, "severity"),
        ("with family", "with (family", 5, "RE2"),
        ("(?P<interface>", "(?=x)(?P<interface>", 5, "RE2"),
        ("${interface}", "${device}", 1, "device"),
        ("within: 200", "within: many", 5, "within"),
        ("{after:", "{behind:", 5, "behind"),
        ("area: nccl", "area: netwrok", 2, "area"),
        ("'with family \\d+'", "'.*'", 5, "everywhere"),
        ("remedy: Correct it.", "remedy: Correct it.\nremedies: x", 11, "remedies"),
        ("remedy: Correct it.", "remedy: Correct it.\nwhen: {sglang: 'older'}", 11, "range of versions"),
        ("remedy: Correct it.", "remedy: Correct it.\nfatal: true", 0, ""),
    ],
)
def test_what_is_wrong_in_a_rule_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    if not said:
        load_rules(tmp_path)
        return
    with pytest.raises(RackwellError) as caught:
        load_rules(tmp_path)
    problem = caught.value.problems[0]
    assert problem.where == f"{path}:{line}"
    assert said in f"{problem.what} {problem.why}"


def test_a_rule_stands_in_the_folder_of_its_area(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.rename(path.with_name("other.yml"))
    with pytest.raises(RackwellError, match="nccl-test"):
        load_rules(tmp_path)


def test_a_fatal_rule_must_also_hold_on_hosts(tmp_path: Path) -> None:
    write(
        tmp_path, GOOD.replace("with family \\d+", "with \\pN family").replace("area: nccl", "area: nccl\nfatal: true")
    )
    with pytest.raises(RackwellError, match="fatal"):
        load_rules(tmp_path)
