# SPDX-License-Identifier: Apache-2.0
"""The stand-in `pct start` and device nodes: PVE's words for what is wrong, and what reaches the container."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from labpve import containers, lxc, node
from labpve.errors import PveError
from labpve.lxc import Lxc
from pvestandin import Standin

CONF = """arch: amd64
dev0: {path},mode=0666
features: nesting=1
hostname: glm5-01
memory: 512
ostype: debian
rootfs: local:200/vm-200-disk-0.raw,size=4G
unprivileged: 1
"""


@pytest.fixture
def real_nodes(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """The stand-in host, with device nodes looked at."""
    monkeypatch.setattr(containers, "device_id", lxc.device_id)
    return standin


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/dev/rackwell-absent", 255, "Device /dev/rackwell-absent does not exist\n"),
        ("/dev/shm", 255, "/dev/shm is not a device\n"),
        ("/dev/null/x", 255, "Error accessing device /dev/null/x: Not a directory\n"),
        ("/dev/null", 0, ""),
    ],
)
def test_start_looks_at_every_node(
    real_nodes: Standin, capsys: pytest.CaptureFixture[str], path: str, code: int, text: str
) -> None:
    real_nodes.put(200, CONF.format(path=path))
    assert real_nodes.pct("start", "200") == code
    assert capsys.readouterr().err == text
    assert (200 in real_nodes.lxc.up) == (code == 0)


def test_a_plain_file_is_no_device(real_nodes: Standin, tmp_path: Path) -> None:
    (tmp_path / "nvidia-uvm").touch()
    with pytest.raises(PveError) as caught:
        lxc.device_id(str(tmp_path / "nvidia-uvm"))
    assert caught.value.text == f"{tmp_path}/nvidia-uvm is not a device"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
class TestNodes:
    """What the container's own node is made from."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        os.mknod(tmp_path / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        return tmp_path / "node"

    def test_number_of_now_and_mode_of_the_entry(self, standin: Standin, source: Path) -> None:
        """A major that changed with the module is followed at the next start; the host's mode never counts."""
        device = {"path": str(source), "mode": "0666"}
        first = standin.lxc.make_node(200, device, unprivileged=True).stat()
        source.unlink()
        os.mknod(source, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        second = standin.lxc.make_node(200, device, unprivileged=True).stat()
        assert (os.minor(first.st_rdev), os.minor(second.st_rdev)) == (3, 5)
        assert (second.st_mode & 0o777, second.st_uid) == (0o666, 100000)
        plain = standin.lxc.make_node(200, {"path": str(source)}, unprivileged=False).stat()
        assert (plain.st_mode & 0o777, plain.st_uid) == (0o660, 0)

    def test_faults_inside_a_running_container(
        self, standin: Standin, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[tuple[str, bool]] = []
        plugged: list[tuple[dict[str, str], int | None]] = []

        def take(_lxc: Lxc, _vmid: int, path: str, *, plain: bool, owner: int) -> None:
            taken.append((path, plain))
            assert owner == 100000

        def plug(_vmid: int, device: dict[str, str], _unprivileged: bool, number: int | None = None) -> None:
            plugged.append((device, number))

        monkeypatch.setattr(node, "_take_away", take)
        monkeypatch.setattr(standin.lxc, "plug_device", plug)
        standin.put(200, CONF.format(path="/dev/null"), running=True)

        def exchange(fault: Any) -> None:
            node.exchange(standin.host, standin.lxc, 200, {"null": fault})

        exchange(False)
        exchange("file")
        assert taken == [("/dev/null", False), ("/dev/null", True)]
        assert plugged == []
        exchange({"mode": "0660"})
        exchange({"major": 234})
        exchange(None)
        assert plugged == [
            ({"path": "/dev/null", "mode": "0660"}, os.makedev(1, 3)),
            ({"path": "/dev/null", "mode": "0666"}, os.makedev(234, 3)),
            ({"path": "/dev/null", "mode": "0666"}, os.makedev(1, 3)),
        ]
        with pytest.raises(PveError, match="is not given /dev/nvidia9"):
            node.exchange(standin.host, standin.lxc, 200, {"nvidia9": False})
        standin.pct("stop", "200")
        taken.clear()
        exchange(False)
        assert taken == []
