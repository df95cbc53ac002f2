# SPDX-License-Identifier: Apache-2.0
"""The release on the container's disk, held against its own manifest and wheels."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite.asking import output, python
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
_SAMPLE = 12
_FILES = 60
_LOOK = """
import hashlib, json, os, sys
root, digest, count = json.loads(sys.argv[1])
place = os.path.join(root, "releases", digest)

def sha256(path):
    summed = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for part in iter(lambda: stream.read(1 << 20), b""):
                summed.update(part)
    except OSError as error:
        return "unreadable: %s" % (error.strerror or error)
    return summed.hexdigest()

def current():
    try:
        return os.path.basename(os.path.realpath(os.readlink(os.path.join(root, "current"))))
    except OSError:
        return ""

manifest = sha256(os.path.join(place, "manifest.json"))
wheels = []
if manifest == digest:
    with open(os.path.join(place, "manifest.json")) as stream:
        # by their hashes: a sample that nobody chose, and the same one each time
        wheels = sorted(json.load(stream)["wheels"], key=lambda one: one["sha256"])
        # the largest would take minutes: what is sampled is spread over the others
        small = [one for one in wheels if one["size"] < 1 << 30]
        step = max(1, len(small) // count)
        wheels = small[::step][:count]
bad = []
for one in wheels:
    found = sha256(os.path.join(root, "store", "sha256", one["sha256"]))
    if found != one["sha256"]:
        bad.append("%s has %s" % (one["filename"], found[:40]))
print(json.dumps({"current": current(), "complete": os.path.exists(os.path.join(place, "complete")),
                  "manifest": manifest, "sampled": len(wheels), "bad": bad}))
"""
_INSTALLED = """
import base64, csv, glob, hashlib, json, os, sys
root, digest, count = json.loads(sys.argv[1])
found = glob.glob(os.path.join(root, "releases", digest, "env", "lib", "python3*", "site-packages"))
listed = []
for site in found:
    for record in sorted(glob.glob(os.path.join(site, "*.dist-info", "RECORD"))):
        with open(record, newline="") as stream:
            listed += [(os.path.join(site, row[0]), row[1]) for row in csv.reader(stream)
                       if len(row) > 1 and row[1].startswith("sha256=")]
listed.sort(key=lambda one: one[1])
bad, step = [], max(1, len(listed) // count)
sample = listed[::step][:count]
for path, wanted in sample:
    try:
        with open(path, "rb") as stream:
            summed = base64.urlsafe_b64encode(hashlib.sha256(stream.read()).digest()).rstrip(b"=").decode()
    except OSError as error:
        summed = error.strerror or "unreadable"
    if "sha256=" + summed != wanted:
        bad.append(path)
print(json.dumps({"listed": len(listed), "sampled": len(sample), "bad": bad}))
"""


@pytest.fixture(scope="module")
def seen(lxc: Host, want: Want) -> dict[str, Any]:
    release = want["release"]
    found: dict[str, Any] = python(lxc, _LOOK, release["root"], release["digest"] or "none", _SAMPLE, seconds=300)
    return found


def test_declared(seen: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """The release that is active is the declared one, and it is complete."""
    digest = want["release"]["digest"]
    fix = want["commands"]["build"]
    found = digest[:12] or "there is no release of it on this machine"
    claim(bool(digest), expected=f"a release of build {want['release']['build']}", found=found, fix=fix)
    fix = want["commands"]["provision"]
    claim(seen["current"] == digest, expected=digest[:12], found=f"{seen['current'][:12] or 'none'} is active", fix=fix)
    claim(seen["complete"], expected="complete", found="complete" if seen["complete"] else "not complete", fix=fix)


def test_manifest(seen: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """The manifest has the hash that the release is named by, and a sample of its wheels theirs."""
    digest = want["release"]["digest"]
    fix = f"{want['commands']['provision']} sends what is damaged anew"
    good = seen["manifest"] == digest
    claim(
        good, expected=f"sha256 {digest[:12]}", found=f"manifest {seen['manifest'][:40]}"[: 21 if good else 50], fix=fix
    )
    claim(
        not seen["bad"], expected="wheels as in the manifest", found=seen["bad"] or f"{seen['sampled']} wheels", fix=fix
    )


def test_installed(lxc: Host, want: Want, claim: Claims) -> None:
    """A sample of the installed files has the hashes of their wheels' records."""
    release = want["release"]
    found = python(lxc, _INSTALLED, release["root"], release["digest"] or "none", _FILES, seconds=300)
    fix = f"{want['commands']['provision']} installs what is damaged anew"
    claim(found["listed"] > 0, expected="installed files", found=f"{found['listed']} files", fix=fix)
    claim(not found["bad"], expected="as recorded", found=found["bad"] or f"{found['sampled']} as recorded", fix=fix)


def test_owner(lxc: Host, want: Want, claim: Claims) -> None:
    """The release is root's, and nobody else can write to it."""
    place = f"{want['release']['root']}/releases/{want['release']['digest'] or 'none'}"
    # env/.lock is uv's own, which it leaves empty and open to all; nothing is read from it
    told = output(
        lxc,
        "find %s ! -type l ! -path %s \\( ! -user root -o -perm /022 \\) -print -quit",
        f"{place}/",
        f"{place}/env/.lock",
        seconds=300,
    )
    fix = f"chown -R root:root {place}; chmod -R go-w {place}; then look for who changed it"
    claim(not told, expected="root's alone", found=told or "root's alone", fix=fix)
