#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installs Debian packages from files that the controller has, without any network."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mirrored_packages
short_description: Install Debian packages that lie on the controller
description:
  - Installs packages with all that they need from a folder of the controller, which C(rackwell build) fills from the
    site's mirror. No archive of the machine's own apt is asked.
  - What is installed already stays as it is. Files whose hash is not that of the index are refused.
options:
  names:
    description: The packages.
    type: list
    elements: str
    required: true
  folder:
    description: Folder of the controller with a folder for each suite of Debian, each with C(index.json).
    type: path
    required: true
  disabled:
    description: Units that must not be enabled by having been installed here.
    type: list
    elements: str
    default: []
  staged:
    description: Where the files were brought to. Set by the module's own side on the controller.
    type: path
  index:
    description: What the index says of them. Set by the module's own side on the controller.
    type: dict
attributes:
  check_mode:
    support: full
    description: Tells which would be installed.
  diff_mode:
    support: none
    description: The names are in the result.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Have nginx
  rackwell.gpu.mirrored_packages:
    names: [nginx, openssl]
    folder: "{{ inventory_dir }}/.rackwell/debs"
    disabled: [nginx.service]
"""

RETURN = r"""
rackwell_result:
  description: What was missing, and what was installed.
  returned: success
  type: dict
  sample: {schema: rackwell.mirrored_packages/1, suite: bookworm, missing: [nginx], installed: [nginx]}
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import hashlib
import os
import re
import subprocess
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import bounded
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

SCHEMA = "rackwell.mirrored_packages/1"
SECONDS = 900


def suite() -> str:
    """The machine's suite of Debian; empty for another system."""
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as stream:
            found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', stream.read(), re.MULTILINE)
    except OSError:
        return ""
    return found.group(1) if found else ""


def missing(names: list[str]) -> list[str]:
    """Those that are not installed."""
    told = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    there = {line.split()[0] for line in told.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in there]


def damaged(folder: str, index: dict[str, Any]) -> str:
    """The first file that is not what the index says; empty when all are."""
    for name, entry in sorted(index.items()):
        summed = hashlib.sha256()
        try:
            with open(os.path.join(folder, name), "rb") as stream:
                for part in iter(lambda: stream.read(1 << 20), b""):
                    summed.update(part)
        except OSError:
            return name
        if summed.hexdigest() != entry["sha256"]:
            return name
    return ""


def install(folder: str, names: list[str], index: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Install from `folder` alone, by apt with lists and sources of its own. Raises OSError, bounded.DeadlineError."""
    lines = []
    for name, entry in sorted(index.items()):
        control = subprocess.run(
            ["dpkg-deb", "--field", os.path.join(folder, name)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.rstrip("\n")
        lines.append("%s\nFilename: ./%s\nSize: %d\nSHA256: %s\n" % (control, name, entry["size"], entry["sha256"]))
    with open(os.path.join(folder, "Packages"), "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines))
    for part in ("lists/partial", "archives/partial"):
        os.makedirs(os.path.join(folder, part))
    source = os.path.join(folder, "sources.list")
    with open(source, "w", encoding="utf-8") as stream:
        # every file was hashed a moment ago
        stream.write("deb [trusted=yes] file:%s ./\n" % folder)
    options = [
        *("-o", "Dir::Etc::sourcelist=" + source, "-o", "Dir::Etc::sourceparts=-"),
        *("-o", "Dir::State::lists=%s/lists" % folder, "-o", "Dir::Cache::archives=%s/archives" % folder),
        *("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "APT::Sandbox::User=root"),
        *("-o", "Dpkg::Options::=--force-confold", "-o", "APT::Install-Recommends=false"),
    ]
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    asked: subprocess.CompletedProcess[str] = bounded.run(
        ["apt-get", *options, "--quiet", "update"], SECONDS, env=environment
    )
    if asked.returncode:
        return asked
    ended: subprocess.CompletedProcess[str] = bounded.run(
        ["apt-get", *options, "--quiet", "--yes", "install", *names], SECONDS, env=environment
    )
    return ended


class Held:
    """No service starts while packages are installed, as with the apt module's policy_rc_d."""

    path = "/usr/sbin/policy-rc.d"

    def __enter__(self) -> None:
        self.mine = not os.path.lexists(self.path)
        if self.mine:
            with open(self.path, "w", encoding="ascii") as stream:
                stream.write("#!/bin/sh\nexit 101\n")
            os.chmod(self.path, 0o755)  # noqa: S103 - dpkg runs it, and it says no

    def __exit__(self, *_: Any) -> None:
        if self.mine:
            os.unlink(self.path)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "disabled": {"type": "list", "elements": "str", "default": []},
            "staged": {"type": "path"},
            "index": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    given = module.params
    lacking = missing(given["names"])
    result = {"schema": SCHEMA, "suite": suite(), "missing": lacking, "installed": []}
    if module.check_mode or not lacking or not given["staged"]:
        done(module, bool(lacking), result)
    wrong = damaged(given["staged"], given["index"])
    if wrong:
        fail(
            module,
            "transfer-damaged",
            "%s did not come as it was sent" % wrong,
            given["staged"],
            "its hash is not that of the index",
            "run again",
        )
    try:
        with Held():
            ended = install(given["staged"], lacking, given["index"])
    except (OSError, subprocess.SubprocessError, bounded.DeadlineError) as error:
        fail(module, "packages-failed", "the packages could not be installed", "apt-get", str(error), "run again")
    if ended.returncode:
        lines = [line for line in (ended.stdout or "").splitlines() if line.startswith("E:")]
        why = " ".join(lines)[:600] or (ended.stdout or "")[-300:]
        fix = "the mirror's packages may be older than what is there: rackwell mirror anew; then run again"
        fail(module, "packages-failed", "the packages could not be installed", "apt-get", why, fix)
    for unit in given["disabled"]:
        with tempfile.TemporaryFile() as nowhere:
            subprocess.run(["systemctl", "disable", unit], stdout=nowhere, stderr=nowhere, check=False)
    done(module, True, {**result, "installed": lacking})


if __name__ == "__main__":
    main()
