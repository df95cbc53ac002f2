# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from rackwell.build import patchfile
from rackwell.build.catalogue.differ import diff

#: few different lines, so that contexts repeat
LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"-- x\n", b"@@ y\n", b"\r\n", b"caf\xc3\xa9\n", b"\xff\n"]), max_size=40
)
FILES = st.builds(lambda lines, end: b"".join(lines) + end, LINES, st.sampled_from([b"", b"no end"]))


def applied(old: bytes | None, data: bytes) -> bytes | None:
    (file,) = patchfile.parse(data)
    return patchfile.apply(old, file)


@hypothesis.given(FILES, FILES)
@hypothesis.settings(deadline=None)
def test_a_diff_applied_gives_the_other_file(old: bytes, new: bytes) -> None:
    data = diff("folder/file.py", old, new)
    if old == new:
        assert data == b""
        return
    assert applied(old, data) == new


@pytest.mark.parametrize(("old", "new"), [(None, b"a\nb\n"), (b"a\nb\n", None), (None, b"no end"), (b"no end", None)])
def test_files_that_come_and_go(old: bytes | None, new: bytes | None) -> None:
    data = diff("folder/file.py", old, new)
    assert applied(old, data) == new
    assert (b"/dev/null" in data.splitlines()[0]) is (old is None)


def test_context_grows_until_the_place_is_the_only_one() -> None:
    block = [b"if x {\n", b"  sync\n", b"}\n", b"\n"] * 3
    lines = [b"first\n", b"1\n", *block, b"second\n", b"2\n", *block, b"end\n"]
    place = lines.index(b"second\n") + 7
    changed = [*lines[:place], b"  wait\n", *lines[place + 1 :]]
    (file,) = patchfile.parse(diff("x.c", b"".join(lines), b"".join(changed)))
    (hunk,) = file.hunks
    old = list(hunk.old)
    assert sum(lines[at : at + len(old)] == old for at in range(len(lines))) == 1
    moved = [b"inserted\n"] * 5 + lines
    assert patchfile.apply(b"".join(moved), file) == b"".join([b"inserted\n"] * 5 + changed)


def test_git_reads_it_too(tmp_path: Path) -> None:
    old = b"".join(b"line %d\n" % number for number in range(30))
    new = old.replace(b"line 3\n", b"").replace(b"line 20\n", b"line 20\nmore\n") + b"no end"
    (tmp_path / "file.py").write_bytes(old)
    subprocess.run(["git", "apply", "-p1"], cwd=tmp_path, input=diff("file.py", old, new), check=True)
    assert (tmp_path / "file.py").read_bytes() == new
