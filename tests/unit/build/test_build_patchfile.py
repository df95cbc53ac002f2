# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackwell.build.patchfile import PatchError, apply, parse

BODY = b"".join(b"line %d\n" % n for n in range(1, 31))


def diff(old: bytes, new: bytes, path: str = "pkg/file.py") -> bytes:
    """A unified diff, as other tools write it."""
    lines = difflib.diff_bytes(
        difflib.unified_diff, old.splitlines(True), new.splitlines(True), f"a/{path}".encode(), f"b/{path}".encode()
    )
    out = b""
    for line in lines:
        out += line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
    return out


def applied(old: bytes | None, text: bytes) -> bytes | None:
    (patch,) = parse(text)
    return apply(old, patch)


def refusal(old: bytes | None, text: bytes) -> PatchError:
    with pytest.raises(PatchError) as caught:
        applied(old, text)
    return caught.value


def test_applies_where_it_says() -> None:
    new = BODY.replace(b"line 9\n", b"nine\n").replace(b"line 25\n", b"")
    assert applied(BODY, diff(BODY, new)) == new


def test_applies_elsewhere_when_the_context_is_unique() -> None:
    new = BODY.replace(b"line 9\n", b"nine\n")
    moved = b"a\nb\nc\n" + BODY
    assert applied(moved, diff(BODY, new)) == b"a\nb\nc\n" + new


def test_refuses_a_context_that_stands_in_two_places() -> None:
    text = diff(BODY, BODY.replace(b"line 9\n", b"nine\n"))
    error = refusal(b"x\n" + BODY + BODY, text)
    assert "2 other places (lines 7, 37)" in error.reason
    assert (error.file, error.hunk, error.line, error.present) == ("pkg/file.py", 1, 3, False)


def test_takes_the_stated_place_among_several() -> None:
    new = BODY.replace(b"line 9\n", b"nine\n")
    assert applied(BODY + BODY, diff(BODY, new)) == new + BODY


@pytest.mark.parametrize("line", [b"line 7\n", b"line 10\n", b"line 12\n", b"line 9\n"])
def test_knows_no_fuzz(line: bytes) -> None:
    text = diff(BODY, BODY.replace(b"line 9\n", b"nine\n"))
    error = refusal(BODY.replace(line, b"other\n"), text)
    number = BODY.split(b"\n").index(line.rstrip()) + 1
    assert f"line {number} is 'other', the patch expects '{line.decode().strip()}'" in error.reason
    assert not error.present


def test_knows_no_difference_in_blanks() -> None:
    text = diff(BODY, BODY.replace(b"line 9\n", b"nine\n"))
    assert not refusal(BODY.replace(b"line 8\n", b"line 8 \n"), text).present
    assert not refusal(BODY.replace(b"\n", b"\r\n"), text).present


def test_tells_what_is_there_already() -> None:
    new = BODY.replace(b"line 9\n", b"nine\n").replace(b"line 25\n", b"")
    text = diff(BODY, new)
    assert refusal(new, text).present
    assert not refusal(BODY.replace(b"line 9\n", b"nine\n"), text).present, "half of it is not all of it"


def test_hunks_stay_in_order() -> None:
    second_first = (
        b"--- a/f\n+++ b/f\n@@ -20,2 +20,2 @@\n line 20\n-line 21\n+x\n@@ -5,2 +5,2 @@\n line 5\n-line 6\n+y\n"
    )
    error = refusal(BODY, second_first)
    assert "before the end of the hunk before it" in error.reason
    assert error.hunk == 2


def test_creates_and_deletes() -> None:
    create = b"--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert applied(None, create) == b"one\ntwo\n"
    assert refusal(b"one\ntwo\n", create).present
    assert not refusal(b"other\n", create).present
    delete = b"--- a/pkg/new.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
    assert applied(b"one\ntwo\n", delete) is None
    assert "lines would remain" in refusal(b"one\ntwo\nthree\n", delete).reason
    assert "no such file" in refusal(None, diff(BODY, BODY.replace(b"line 9", b"nine"))).reason


def test_ends_without_a_newline() -> None:
    for old, new in [(b"a\nb", b"a\nc"), (b"a\nb", b"a\nb\n"), (b"a\nb\n", b"a\nb"), (b"a\nb\n", b"a\nb\nc")]:
        assert applied(old, diff(old, new)) == new
    assert refusal(b"a\nb\n", diff(b"a\nb", b"a\nc"))


def test_ignores_what_mail_and_git_add() -> None:
    text = b"From: x\nSubject: y\n\n---\n a | 2 +-\n\ndiff --git a/f b/f\nindex 1..2 100644\n"
    text += diff(BODY, BODY.replace(b"line 9\n", b"nine\n")) + b"-- \n2.39.2\n"
    assert b"nine\n" in (applied(BODY, text) or b"")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no file header"),
        (b"--- a/f\n+++ b/f\n", "no hunk"),
        (b"--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "different files"),
        (b"--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-a\n+b\n", "must be relative"),
        (b"--- /etc/f\n+++ /etc/f\n@@ -1 +1 @@\n-a\n+b\n", "must be relative"),
        (b"--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n+b\n", "ends inside"),
        (b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "begins with a space"),
        (b"--- a/f\n+++ b/f\n@@ nonsense @@\n-a\n+b\n", "not a hunk header"),
        (b"diff --git a/f b/g\nrename from f\nrename to g\n", "not supported"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "without a file header"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n+c\n", "more lines than its header"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-c\n@@ -9 +9 @@\n-x\n+y\n", "more lines than its header"),
        (b"--- a/f\n+++ b/f\n@@ -" + b"9" * 5000 + b" +1 @@\n-a\n+b\n", "not a hunk header"),
        (b"--- a/x\0y\n+++ b/x\0y\n@@ -1 +1 @@\n-a\n+b\n", "control character"),
        (b"--- a/f/../../g\n+++ b/f/../../g\n@@ -1 +1 @@\n-a\n+b\n", "must be relative"),
        (b"--- /dev/null\n+++ b//etc/f\n@@ -0,0 +1 @@\n+b\n\\ No newline\n+c\n", "more lines than its header"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n" * 2, "twice"),
    ],
)
def test_malformed(text: bytes, reason: str) -> None:
    with pytest.raises(PatchError, match=reason):
        parse(text)


def test_a_long_path_stays_whole() -> None:
    path = "pkg/" + "x" * 200 + ".py"
    (patch,) = parse(diff(BODY, BODY.replace(b"line 9\n", b"nine\n"), path))
    assert patch.path == path


@given(st.binary(max_size=60) | st.text("-+@ \n\\/ab0123456789,", max_size=80).map(str.encode), st.integers(0, 200))
def test_any_bytes_are_a_patch_or_refused(noise: bytes, at: int) -> None:
    text = diff(BODY, BODY.replace(b"line 9\n", b"nine\n"))
    for data in (noise, text[:at] + noise + text[at:], text[:at]):
        try:
            for patch in parse(data):
                apply(BODY, patch)
        except PatchError as error:
            reason, line = error.reason, error.line
        else:
            continue
        assert reason
        assert line >= 0


def test_a_hunk_needs_context() -> None:
    assert "no context" in refusal(BODY, b"--- a/f\n+++ b/f\n@@ -3,0 +4 @@\n+new\n").reason


@given(
    st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n"]), max_size=40),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"x\n", b"\n"]), max_size=40),
)
def test_any_diff_makes_the_new_file_of_the_old(old_lines: list[bytes], new_lines: list[bytes]) -> None:
    # splitlines(True) of difflib's caller and of the patch agree on these line ends
    old, new = b"".join(old_lines), b"".join(new_lines)
    if old and old != new:
        assert applied(old, diff(old, new)) == new
