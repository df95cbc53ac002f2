# SPDX-License-Identifier: Apache-2.0
"""What the fetch leaves on the Proxmox host: files of a user without rights, and the token nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from testinfra.host import Host

MACHINE = "pve1"
SNAPSHOT = "/srv/models/toy/toy--model/0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_molecule0123456789"


def test_the_files_are_of_the_user_that_fetched_and_readable_by_all(host: Host) -> None:
    config = host.file(f"{SNAPSHOT}/config.json")
    assert (config.user, oct(config.mode)) == ("rackwell-weights", "0o644")
    assert host.user("rackwell-weights").shell == "/usr/sbin/nologin"


def test_nothing_is_left_of_the_fetch(host: Host) -> None:
    assert host.check_output("ls -A /srv/models/toy/toy--model") == SNAPSHOT.rsplit("/", 1)[1]
    assert host.check_output("systemctl list-units --no-legend --all 'rackwell-weights-*'") == ""
    state = json.loads(host.check_output("cat /var/lib/rackwell-weights/*/state.json"))
    assert (state["phase"], state["error"]) == ("done", None)


@pytest.mark.parametrize("place", ["/srv/models", "/var/lib", "/var/log", "/run", "/etc", "/root", "/tmp"])
def test_the_token_is_in_no_file_of_the_host(host: Host, place: str) -> None:
    assert host.run(f"grep -rqsF --exclude-dir=lxc --exclude-dir=lxcfs -D skip {TOKEN} {place}").rc != 0


def test_the_token_is_not_in_the_journal(host: Host) -> None:
    told = host.check_output("journalctl --no-pager -o verbose")
    assert "rackwell-weights-" in told
    assert TOKEN not in told


def test_the_token_is_in_no_artefact_of_the_controller() -> None:
    """The hub's own command line had it; what the run kept on the controller must not."""
    site = Path(os.environ["RACKWELL_INVENTORY"]).parent
    kept = [path for path in (site / ".rackwell").rglob("*") if path.is_file() and "blobs" not in path.parts]
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]
