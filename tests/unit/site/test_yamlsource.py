# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwell.errors import ExitCode, RackwellError
from rackwell.site import yamlsource

HERE = Path("x.yml")


def parse(text: str) -> yamlsource.Document:
    return yamlsource.parse(text, HERE)


def refused(text: str) -> tuple[str, str, str]:
    with pytest.raises(RackwellError) as caught:
        parse(text)
    assert caught.value.exit_code == ExitCode.INVALID
    problem = caught.value.problems[0]
    return problem.code, problem.where, problem.why


def test_lines_of_keys_and_items() -> None:
    document = parse("a: 1\nb:\n  c:\n    - x\n    - y: 2\n# comment\nd: 3\n")
    assert document.data == {"a": 1, "b": {"c": ["x", {"y": 2}]}, "d": 3}
    assert document.line(("b", "c")) == 3
    assert document.line(("b", "c", 1, "y")) == 5
    assert document.line(("d",)) == 7


def test_unknown_place_is_that_of_its_nearest_ancestor() -> None:
    document = parse("a: 1\nb:\n  c: 2\n")
    assert document.line(("b", "z", "q")) == 2
    assert document.where(("b", "c")) == "x.yml:3"


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "{a: 1, b: 2,\n\n a: 3}"])
def test_duplicate_key_is_refused_with_both_lines(text: str) -> None:
    code, where, why = refused(text)
    assert (code, where) == ("duplicate-key", "x.yml:3")
    assert "line 1" in why


def test_duplicate_key_deep_inside() -> None:
    assert refused("a:\n  - b:\n      c: 1\n      c: 2\n")[:2] == ("duplicate-key", "x.yml:4")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: [1\n", 2), ("a: 1\n\tb: 2\n", 2), ("a: 1\n---\nb: 2\n", 2), ("a: @x\n", 1), ("a: *nope\n", 1)],
)
def test_bad_yaml_names_the_line(text: str, line: int) -> None:
    code, where, why = refused(text)
    assert (code, where) == ("yaml-syntax", f"x.yml:{line}")
    assert why


def test_a_value_that_contains_itself_is_refused() -> None:
    assert refused("a: &a\n  b: *a\n")[0] == "yaml-syntax"


def test_ansible_tags_are_tolerated() -> None:
    document = parse("a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\nb: !unsafe '{{ raw }}'\n")
    assert isinstance(document.data["a"], yamlsource.Sealed)
    assert document.data["b"] == "{{ raw }}"


@pytest.mark.parametrize("text", ["a: 1\nb: 2026-99-99\n", "a: 1\n0b_: 1\n", "a: 1\nb: !!int x\n"])
def test_a_text_that_only_looks_like_a_number_is_told_with_its_line(text: str) -> None:
    with pytest.raises(RackwellError) as caught:
        parse(text)
    problem = caught.value.problems[0]
    assert (problem.code, problem.where.rpartition(":")[2]) == ("yaml-syntax", "2")
    assert "quotes" in problem.why


def test_merge_keys_are_weaker_than_own_ones() -> None:
    document = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert document.data["use"] == {"x": 1, "y": 3}


def test_empty_document_is_none() -> None:
    assert parse("# nothing\n").data is None


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RackwellError) as caught:
        yamlsource.load(tmp_path / "no.yml")
    assert caught.value.problems[0].code == "file-missing"


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True).map(lambda key: f"k{key}"), st.integers(), min_size=1)
)
def test_every_key_is_found_at_its_line(data: dict[str, int]) -> None:
    document = parse("".join(f"{key}: {value}\n" for key, value in data.items()))
    assert document.data == data
    assert [document.line((key,)) for key in data] == list(range(1, len(data) + 1))
