# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a site's files: named with place and cure, or it holds. Never a traceback."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sitemaker import SITE, SiteMaker, listing

from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.provision import declared
from rackwell.site import declaration, inventory, validation, yamlsource
from rackwell.site.benchfile import BenchProfile

FILES = [name for name in SITE if name.endswith(".yml")]
VARIABLES = "host_vars/glm5-01.yml"


def judged(site: SiteMaker) -> list[Problem]:
    """All problems, each of them whole."""
    code = ExitCode.INVALID
    try:
        found = declared.problems(declaration.load(site.root))
    except RackwellError as error:
        code, found = error.exit_code, error.problems
    assert code == ExitCode.INVALID
    for problem in found:
        assert problem.what, problem
        assert problem.where, problem
        assert problem.fix, problem
        str(problem).encode()
    return found


def text_of(file: str) -> list[str]:
    return SITE[file].splitlines()


values = st.sampled_from(
    ["", "~", "[]", "{}", "true", "-1", ".nan", ".inf", "1e999", "9" * 5000, "0x" + "f" * 5000, "2026-01-01", "1:2:3",
     "!!int ''", "!!bool x", "!!timestamp x", "!!binary é", "!!set {a}", "!foo bar", "!vault x", "[1, a, ~, {}]",
     "{str: 1}", "{'a[b': 1}", "{1: 2}", "{~: 2}", "{a: {b: c}}", '"\\0"', '"\\ud800"', '"\\u202e"', "x" * 300,
     "~nobody-here/x", "/dev/null", "../../x", "&a [*a]", "*b", "'{{ missing }}'", "'{{ 9**9**9 }}'",
     "'{{ \"a\" * 10**12 }}'", "'{{ ''.__class__ }}'", "'{{ lookup }}'", "'{{ namespace() }}'", "'{{ groups }}'",
     "'{{ " + "(" * 2000 + "'", "'{{ inventory_dir }}'", "ß\u2028ü", "a\tb: c"]
)  # fmt: skip


@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    st.sampled_from([file for file in FILES if file != "hosts.yml"]),
    st.integers(0, 20),
    values | st.text(max_size=30),
    st.sampled_from(["\n", "\r\n"]),
)
@example(VARIABLES, 0, "{" * 3000, "\n")
def test_a_line_with_any_value(file: str, number: int, value: str, end: str) -> None:
    lines = text_of(file)
    at = number % len(lines)
    lines[at] = f"{lines[at].partition(':')[0]}: {value}"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(inventory, "read", lambda path: inventory.from_listing(listing(path), path))
        site = SiteMaker(Path(folder))
        (site.root / file).write_bytes(end.join([*lines, ""]).encode("utf-8", "surrogatepass"))
        judged(site)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"a: \0", "yaml-syntax"),
        (b"ok: 1\na: \x07\n", "yaml-syntax"),
        (b"[" * 5000, "yaml-syntax"),
        (b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
         + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 10)) for c in range(98, 108)),
         "yaml-syntax"),
        (b'a: "\\0"\n', "yaml-syntax"),
        (b"a: 0x" + b"f" * 5000, "yaml-syntax"),
        (b"a: !!bool x\n", "yaml-syntax"),
        (b"a: !!timestamp x\n", "yaml-syntax"),
        (b"a: \xe9\n", "file-unreadable"),
        ("a: 1\n".encode("utf-16"), "file-unreadable"),
        (b"a: " + b"x" * 1_000_000, None),
        (b"\xef\xbb\xbfa: 1\r\n", None),
    ],
)  # fmt: skip
def test_any_bytes(tmp_path: Path, content: bytes, code: str | None) -> None:
    path = tmp_path / "x.yml"
    path.write_bytes(content)
    if code is None:
        assert yamlsource.load(path).data["a"]
        return
    with pytest.raises(RackwellError) as caught:
        yamlsource.load(path)
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == (code, ExitCode.INVALID)
    assert problem.where.startswith(str(path))
    assert problem.why
    assert problem.fix


def test_the_line_of_a_character_that_yaml_has_not(tmp_path: Path) -> None:
    with pytest.raises(RackwellError) as caught:
        yamlsource.parse("a: 1\nb: 2\nc: \x07\n", tmp_path / "x.yml")
    assert caught.value.problems[0].where.endswith("x.yml:3")
    assert "#x0007" in caught.value.problems[0].why


def a_folder(path: Path) -> None:
    path.mkdir()


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("thing", [a_folder, a_pipe, a_loop, a_device])
@pytest.mark.parametrize(
    "file", ["hosts.yml", VARIABLES, "profiles/toy.yml", "bench/quick.yml", "builds/server.yml", "known_hosts"]
)
def test_what_is_no_file(site: SiteMaker, file: str, thing: Callable[[Path], None]) -> None:
    site.remove(file)
    thing(site.root / file)
    assert judged(site)


@pytest.mark.parametrize("hosts", ["5", "true", "abc", "[a]"])
def test_hosts_that_are_no_mapping_are_left_to_ansible(site: SiteMaker, hosts: str) -> None:
    site.write("hosts.yml", f"all: {{hosts: {hosts}}}\n")
    sources, problems = inventory.read_sources(site.root)
    assert sources is not None
    assert problems == []


def test_a_folder_of_variables_that_cannot_be_listed(site: SiteMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    problems = judged(site)
    assert [(problem.code, problem.where) for problem in problems] == [
        ("file-unreadable", str(site.root / kind)) for kind in ("group_vars", "host_vars")
    ]


@pytest.mark.parametrize("key", ["str", "int", "a[b"])
def test_a_key_that_pydantic_uses_itself_is_told_at_its_line(tmp_path: Path, key: str) -> None:
    document = yamlsource.parse(f"concurrency: [1]\ninput_tokens: 1\noutput_tokens: 1\n{key}: 1\n", tmp_path / "x.yml")
    with pytest.raises(RackwellError) as caught:
        validation.validate(BenchProfile, document, "bench file")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("unknown-key", f"{tmp_path}/x.yml:4")
    assert f"'{key}'" in problem.what


@pytest.mark.parametrize(
    "text",
    ["{{ missing }}", "{{ 9**9**9 }}", "{{ 'a' * 10**12 }}", "{{ ''.__class__ }}", "{{ lookup }}", "{{ " + "(" * 3000],
)
def test_a_template_without_a_plain_value_is_left_to_ansible(site: SiteMaker, text: str) -> None:
    made = inventory.from_listing({"_meta": {"hostvars": {"h": {"a": text, "b": "{{ 3 * 2 }}"}}}}, site.root)
    assert isinstance(made.variables["h"]["a"], inventory.Unresolved)
    assert made.variables["h"]["b"] == 6


def test_templates_that_lead_to_each_other_end(site: SiteMaker) -> None:
    variables = {f"v{n}": "{{ hostvars }}" for n in range(9)}
    made = inventory.from_listing({"_meta": {"hostvars": {"h": variables}}}, site.root)
    assert set(made.variables["h"]) == set(variables)
