# SPDX-License-Identifier: Apache-2.0
"""Values of the configuration: parts, meaning, what is pending."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import (
    Change,
    Conf,
    index_of,
    kind_of,
    lines,
    meaning,
    parse_properties,
    print_properties,
)


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("dev", "/dev/nvidia0,mode=0666", {"path": "/dev/nvidia0", "mode": "0666"}),
        ("dev", "path=/dev/nvidia0,mode=0666", {"path": "/dev/nvidia0", "mode": "0666"}),
        ("mp", "/srv/models,mp=/srv/models,ro=1", {"volume": "/srv/models", "mp": "/srv/models", "ro": "1"}),
        ("rootfs", "local:201/vm-201-disk-0.raw,size=4G", {"volume": "local:201/vm-201-disk-0.raw", "size": "4G"}),
        ("features", "keyctl=1,nesting=1", {"keyctl": "1", "nesting": "1"}),
        ("features", "", {}),
    ],
)
def test_a_property_string_is_read_into_its_parts(kind: str, text: str, parts: dict[str, str]) -> None:
    assert parse_properties(kind, text) == parts


def test_parts_are_written_in_pves_order() -> None:
    net = {"ip": "10.0.0.5/24", "bridge": "vmbr0", "name": "eth0", "gw": "10.0.0.1"}
    assert print_properties("net", net) == "name=eth0,bridge=vmbr0,gw=10.0.0.1,ip=10.0.0.5/24"
    assert print_properties("dev", {"mode": "0666", "path": "/dev/x"}) == "/dev/x,mode=0666"


def test_what_is_assumed_anyway_makes_no_difference() -> None:
    assert meaning("dev", {"path": "/dev/x", "mode": "0660", "uid": "0"}) == meaning("dev", {"path": "/dev/x"})
    assert meaning("mp", {"volume": "/a", "ro": "yes"}) == meaning("mp", {"volume": "/a", "ro": "1"})
    assert meaning("features", {"nesting": "1", "keyctl": "0"}) == {"nesting": "1"}
    assert meaning("dev", {"path": "/dev/x", "mode": "0666"}) != meaning("dev", {"path": "/dev/x"})


def test_pending_rows_become_current_and_effective_values() -> None:
    conf = Conf.from_api(
        [
            {"key": "memory", "value": 512},
            {"key": "features", "value": "nesting=1", "pending": "keyctl=1,nesting=1"},
            {"key": "dev0", "value": "/dev/a", "delete": 1},
            {"key": "nameserver", "pending": "10.0.0.2"},
            {"key": "digest", "value": "abc"},
        ]
    )
    assert conf.current == {"memory": "512", "features": "nesting=1", "dev0": "/dev/a"}
    assert conf.effective() == {"memory": "512", "features": "keyctl=1,nesting=1", "nameserver": "10.0.0.2"}
    assert conf.waiting() == ["dev0", "features", "nameserver"]


@pytest.mark.parametrize("text", ["rackwell;gpu", "gpu,rackwell", "gpu rackwell"])
def test_tags_are_separated_by_any_of_pves_separators(text: str) -> None:
    assert set(Conf({"tags": text}).tags()) == {"rackwell", "gpu"}


def test_lines_sort_numbers_as_numbers() -> None:
    assert lines({"dev10": "b", "dev2": "a", "arch": "amd64"}) == "arch: amd64\ndev2: a\ndev10: b\n"


def test_kind_and_number_of_a_key() -> None:
    assert (kind_of("dev12"), index_of("dev12")) == ("dev", 12)
    assert kind_of("memory") == "memory"


def test_the_inverse_of_a_change_takes_it_back() -> None:
    assert Change("dev1", None, "/dev/a", False).inverse() == Change("dev1", "/dev/a", None, False)
