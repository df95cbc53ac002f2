# SPDX-License-Identifier: Apache-2.0
"""Where this machine gets Debian from: its own apt settings, so that a company's mirror and proxy hold here too."""

from __future__ import annotations

import os
from pathlib import Path

from rwlab.proc import run

_FORMAT = "$(SITE)|$(ORIGIN)|$(LABEL)|$(CODENAME)|$(COMPONENT)"


def pick(targets: str, codename: str) -> str | None:
    """The Debian mirror among apt's index targets, one ``site|origin|label|codename|component`` a line.

    Origin and label are known only when apt's lists were fetched. Without them, a source that has a suite of
    Debian's name below a directory called ``debian`` is taken.
    """
    rows = [line.split("|") for line in targets.splitlines() if line.count("|") == 4]
    for site, origin, label, _, component in rows:
        if (origin, label, component) == ("Debian", "Debian", "main"):
            return site
    for site, origin, _, suite, component in rows:
        if not origin and component == "main" and suite in ("", codename) and site.rstrip("/").endswith("/debian"):
            return site
    return None


def of_machine() -> str | None:
    """URL of the Debian mirror that this machine's apt uses; None when it has none."""
    found = run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"], check=False)
    return pick(found.stdout, _codename()) if found.returncode == 0 else None


def proxy_environment() -> dict[str, str]:
    """apt's own proxies, in the form that debootstrap's wget understands; the environment's settings win."""
    found = {}
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        if os.environ.get(name):
            continue
        done = run(["apt-config", "shell", "value", f"Acquire::{scheme}::Proxy"], check=False)
        value = done.stdout.partition("=")[2].strip().strip("'\"")
        if value and value != "DIRECT":
            found[name] = value
    return found


def _codename() -> str:
    try:
        with Path("/etc/os-release").open() as lines:
            release = dict(line.rstrip().split("=", 1) for line in lines if "=" in line)
    except OSError:
        return ""
    return release.get("VERSION_CODENAME", "").strip('"')
