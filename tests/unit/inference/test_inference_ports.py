# SPDX-License-Identifier: Apache-2.0
"""Who holds a port."""

from __future__ import annotations

import os
import socket

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_ports as ports

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 100 0 0 10 0
   1: 0100007F:7531 0100007F:7530 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0 100 0 0 10 0
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 444 1 0 100 0 0 10 0
   1: 00000000000000000000000001000000:0051 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 555 1 0 100 0 0 10 0
   2: 0000000000000000FFFF00000100007F:0052 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 666 1 0 100 0 0 10 0
"""


def test_listening_sockets_are_read() -> None:
    assert ports.parse_listeners(TCP) == [("127.0.0.1", 30000, 111), ("0.0.0.0", 22, 333)]
    assert [one[:2] for one in ports.parse_listeners(TCP6)] == [("::", 80), ("::1", 81), ("127.0.0.1", 82)]


@pytest.mark.parametrize(
    ("address", "host", "blocks"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "10.0.0.5", True),
        ("::", "127.0.0.1", True),
        ("10.0.0.6", "10.0.0.5", False),
    ],
)
def test_which_listeners_are_in_the_way(address: str, host: str, blocks: bool) -> None:
    listener = ports.Listener(address, 30000, 1)
    assert bool(ports.in_the_way([listener], host, 30000)) is blocks
    assert not ports.in_the_way([listener], host, 30001)


def test_the_process_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (owner,) = ports.port_owners("127.0.0.1", port)
        assert owner.pid == os.getpid()
        assert "python" in owner.command or "pytest" in owner.command
    assert ports.port_owners("127.0.0.1", port) == []


def test_a_process_belongs_to_the_unit_of_its_control_group() -> None:
    inside = ports.Owner(7, "python", ("/system.slice/rackwell-inference.service",))
    outside = ports.Owner(8, "python", ("/system.slice/rackwell-inference.service-other", "/user.slice"))
    assert inside.belongs_to("rackwell-inference.service")
    assert not outside.belongs_to("rackwell-inference.service")


def test_an_address_of_another_machine_is_not_local() -> None:
    assert ports.is_local("127.0.0.1")
    assert not ports.is_local("192.0.2.1")
    assert not ports.is_local("no such host.invalid")
