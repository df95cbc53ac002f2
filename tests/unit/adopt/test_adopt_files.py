# SPDX-License-Identifier: Apache-2.0
"""The files that adopting writes: an entry in any hosts.yml, and variables that read back as what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rackwell.errors import ExitCode, RackwellError
from rackwell.provision import adoptfile

FULL = """\
---
# the machines
all:
  children:
    pve:
      hosts:
        pve1:
          ansible_host: 192.0.2.10
    # the containers
    gpu_containers:
      hosts:
        glm5-01:
        glm5-02:   # the second
          pve_container_vmid: 202

    # routers:
    #   hosts:
"""
PVE = "    pve:\n      hosts:\n        p:\n"
ALL = "all:\n  children:\n"
PLACES = {
    "entries": FULL,
    "last": FULL.partition("\n    # routers")[0] + "\n",
    "no newline at the end": FULL.partition("          pve_container_vmid")[0].rstrip(),
    "empty hosts": ALL + "    gpu_containers:\n      hosts:\n      vars:\n        a: 1\n" + PVE,
    "empty group": ALL + PVE + "    gpu_containers:\n",
    "group without hosts": ALL + "    gpu_containers:\n      vars:\n        a: {b: 1}\n",
    "no group": "all:\n  vars:\n    x: 1\n  children:\n" + PVE + "          a:\n            - 1\n",
    "four spaces": "all:\n    children:\n        gpu_containers:\n            hosts:\n                a:\n"
    "                    b: |\n                      text\n",
}
STRANGE = {
    "one line": "all: {children: {gpu_containers: {hosts: {a: }}}}\n",
    "anchors": ALL + "    gpu_containers: &g\n      hosts:\n        a:\n    other: *g\n",
}
EMPTY = [
    ALL + f"    gpu_containers:{text}\n" + PVE
    for text in ("\n      hosts: null", "\n      hosts: {}  # none yet", " ~")
]


@pytest.mark.parametrize("place", PLACES)
def test_an_entry_is_added_and_all_else_stays(place: str) -> None:
    text = PLACES[place]
    edited = adoptfile.with_container(text, "new-01", Path("hosts.yml"))
    before, after = yaml.safe_load(text), yaml.safe_load(edited)
    hosts = after["all"]["children"]["gpu_containers"]["hosts"]
    assert hosts.pop("new-01") is None
    assert hosts == ((before["all"]["children"].get("gpu_containers") or {}).get("hosts") or {})
    # every line that was there is there still, in its order
    left = iter(edited.splitlines())
    assert all(line in left for line in text.splitlines())
    assert adoptfile.with_container(edited, "new-01", Path("hosts.yml")) == edited


@pytest.mark.parametrize("text", EMPTY)
def test_words_that_say_there_is_none_make_room(text: str) -> None:
    edited = adoptfile.with_container(text, "new-01", Path("hosts.yml"))
    known = yaml.safe_load(edited)["all"]["children"]
    assert known["gpu_containers"]["hosts"] == {"new-01": None}
    assert known["pve"] == yaml.safe_load(text)["all"]["children"]["pve"]
    assert edited.count("#") == text.count("#")


@pytest.mark.parametrize("place", STRANGE)
def test_what_is_written_otherwise_is_left_to_the_person(place: str) -> None:
    with pytest.raises(RackwellError) as caught:
        adoptfile.with_container(STRANGE[place], "new-01", Path("hosts.yml"))
    assert caught.value.exit_code == ExitCode.INVALID
    assert "gpu_containers" in caught.value.problems[0].fix


def test_the_entry_stands_after_the_last_one_and_before_the_comments() -> None:
    lines = adoptfile.with_container(FULL, "new-01", Path("hosts.yml")).splitlines()
    assert lines[lines.index("        new-01:") - 1] == "          pve_container_vmid: 202"


def test_a_name_that_yaml_would_read_otherwise_is_quoted() -> None:
    edited = adoptfile.with_container(FULL, "201", Path("hosts.yml"))
    assert "201" in yaml.safe_load(edited)["all"]["children"]["gpu_containers"]["hosts"]


def test_the_variables_read_back_as_they_were_seen() -> None:
    found = {
        "vmid": 201,
        "hostname": "glm5-01",
        "device_mode": "0666",
        "memory": 4096,
        "gpus": ["0000:06:00.0"],
        "devices": [{"path": "/dev/nvidia0", "mode": "0660", "gid": 44}],
        "mounts": [{"source": "/srv/m ö", "target": "/m", "read_only": False, "options": {"acl": True}}],
        "raw": ["lxc.cap.drop:", "lxc.mount.entry: /a b none bind 0 0 # not a comment"],
        "options": {"startup": "order=3", "net1": "name=eth1,bridge=vmbr1"},
        "nameserver": "10.0.0.1 10.0.0.2",
        "memlock": "1024",
        "numa_nodes": [0],
    }
    text = adoptfile.host_vars("pve1", found, {"ip": "192.0.2.21/24"}, ["Not declared: x: y"], "pve1:/f", 1)
    read = yaml.safe_load(text)
    assert read.pop("gpu_probe_gpus") == 1
    assert read.pop("pve_container_host") == "pve1"
    assert read.pop("pve_container_ip") == "FILL_IN 192.0.2.21/24"
    assert read == {f"pve_container_{name}": value for name, value in found.items()}
    assert "# Not declared: x: y\n" in text
    assert text.startswith("---\n")
