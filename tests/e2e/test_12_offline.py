# SPDX-License-Identifier: Apache-2.0
"""Offline sites: a mirror is filled once; then all is built and provisioned where nothing but the machines is reached.

The command line runs in a network namespace whose one way leads to the laboratory's bridge; what the machines would
send elsewhere is dropped. Both count what tried to leave.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import INSTANCE, Ended, inside, lab, more, rackwell

NAMESPACE = f"rackwell-offline-{INSTANCE}"[:40]
PROGRAM = [sys.executable, "-c", "from rackwell.cli.main import run; run()"]
KEY = "0123456789abcdef" * 4


def template_of(host: str, container: str, site: Path) -> tuple[str, str]:
    """Path on the host, and hash, of the container's template."""
    volume = yaml.safe_load((site / f"host_vars/{container}.yml").read_text())["pve_container_template"]
    place = inside(host, f"pvesm path {volume}")
    return place, inside(host, f"sha256sum {place}").split()[0]


def declared_with(site: Path, copy: Path, container: str, **variables: Any) -> Path:
    """A copy of the site's declaration, without anything that was fetched or locked, and with more variables."""
    ignored = shutil.ignore_patterns(".rackwell", "*.lock")
    shutil.copytree(site, copy, symlinks=True, ignore=ignored)
    path = copy / f"host_vars/{container}.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | variables))
    return copy


@pytest.fixture(scope="module")
def online(site: Path, container: str, host: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site where there is a network: with a proxy, and the template by its hash."""
    copy = tmp_path_factory.mktemp("online") / "site"
    keys = copy / "api-keys"
    declared_with(
        site,
        copy,
        container,
        pve_container_template_sha256=template_of(host, container, site)[1],
        api_proxy_state="present",
        api_proxy_certificate_from="self-signed",
        api_proxy_port=8443,
        api_proxy_keys_file=str(keys),
    )
    keys.write_text(f"tester {KEY}\n")
    keys.chmod(0o600)
    for lock in (site / "builds").glob("*.lock"):
        shutil.copy(lock, copy / "builds")
    # what was downloaded is not downloaded again
    (copy / ".rackwell").symlink_to(site / ".rackwell")
    return copy


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mirror") / "mirror"


@more
def test_a_mirror_is_filled_once_and_what_is_damaged_is_found_and_mended(online: Path, mirror: Path) -> None:
    filled = rackwell("mirror", mirror, "--without-debs", "-i", online)
    assert filled.code == 0, filled.json["problems"]
    assert {"wheel", "driver", "template", "lock"} <= set(filled.result["kinds"])
    assert rackwell("mirror", mirror, "--check").code == 0

    manifest = json.loads((mirror / "manifest.json").read_text())
    driver = next(path for path, entry in manifest["files"].items() if entry["kind"] == "driver")
    whole = (mirror / driver).read_bytes()
    (mirror / driver).write_bytes(whole[:-1] + b"x")
    damaged = rackwell("mirror", mirror, "--check")
    assert (damaged.code, damaged.result["damaged"]) == (1, [driver])

    again = rackwell("mirror", mirror, "--without-debs", "-i", online)
    assert (again.code, again.result["added"], again.result["added_bytes"]) == (0, 1, len(whole))
    assert (mirror / driver).read_bytes() == whole
    assert json.loads((mirror / "manifest.json").read_text()) == manifest


@dataclasses.dataclass(frozen=True)
class Closed:
    """A network without a way out."""

    subnet: str

    def run(self, *arguments: str | Path) -> Ended:
        """The command line, in it."""
        command = ["ip", "netns", "exec", NAMESPACE, *PROGRAM, *map(str, arguments), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.stdout.strip(), done.stderr
        return Ended(done.returncode, json.loads(done.stdout), done.stderr)

    def left(self) -> dict[str, int]:
        """Packets that tried to leave: of the controller, and of the machines."""
        counters = {}
        for name, prefix, chain in (
            ("controller", ["ip", "netns", "exec", NAMESPACE], "OUTPUT"),
            ("machines", [], "FORWARD"),
            ("machines to here", [], "INPUT"),
        ):
            listed = subprocess.check_output([*prefix, "iptables", "-w", "-nvxL", chain], text=True)
            (row,) = [line for line in listed.splitlines() if NAMESPACE in line]
            counters[name] = int(row.split()[0])
        return counters


@pytest.fixture(scope="module")
def closed() -> Iterator[Closed]:
    status = json.loads(lab("status", "--json"))
    bridge, subnet = status["bridge"], status["network"]
    base = subnet.rpartition(".")[0]
    inner = f"rwo-{bridge.rpartition('-')[2]}"[:15]
    mark = ["-m", "comment", "--comment", NAMESPACE, "-j", "DROP"]
    # answers to the laboratory's own ssh are none of theirs
    begun = ["-m", "conntrack", "--ctstate", "NEW"]
    rules = [
        ["FORWARD", "-s", subnet, "!", "-d", subnet, *mark],
        ["INPUT", "-i", bridge, "-s", subnet, "-d", f"{base}.1", *begun, *mark],
    ]
    within = ["ip", "netns", "exec", NAMESPACE]

    def do(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)

    with contextlib.ExitStack() as back:

        def undo(*words: str) -> None:
            back.callback(subprocess.run, words, check=False, capture_output=True)

        do("ip", "netns", "add", NAMESPACE)
        undo("ip", "netns", "delete", NAMESPACE)
        do("ip", "link", "add", inner, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE)
        undo("ip", "link", "delete", inner)
        do("ip", "link", "set", inner, "master", bridge, "up")
        do(*within, "ip", "link", "set", "lo", "up")
        do(*within, "ip", "address", "add", f"{base}.250/24", "dev", "eth0")
        do(*within, "ip", "link", "set", "eth0", "up")
        # a way that leads nowhere: what takes it is counted, not refused before it is seen
        do(*within, "ip", "route", "add", "default", "via", f"{base}.254")
        do(*within, "iptables", "-w", "-I", "OUTPUT", "!", "-o", "lo", "!", "-d", subnet, *mark)
        for rule in rules:
            do("iptables", "-w", "-I", *rule)
            undo("iptables", "-w", "-D", *rule)
        yield Closed(subnet)


@pytest.fixture(scope="module")
def offline(
    site: Path, online: Path, mirror: Path, container: str, host: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The same declaration where there is no network, and nothing of it was ever built or made."""
    assert rackwell("mirror", mirror, "-i", online).code == 0
    place, sha256 = template_of(host, container, site)
    lab("destroy", container)
    copy = tmp_path_factory.mktemp("offline") / "site"
    mine = yaml.safe_load((online / f"host_vars/{container}.yml").read_text())
    mine |= {
        "rackwell_mirror": str(mirror),
        "pve_container_template_sha256": sha256,
        # nobody may ask for it
        "nvidia_userspace_run_file": "https://drivers.invalid/NVIDIA-Linux-x86_64-595.58.03.run",
    }
    declared_with(site, copy, container, **mine)
    # a host's machines share the mirror
    path = copy / "group_vars/all.yml"
    path.write_text(path.read_text() + f"\nrackwell_mirror: {mirror}\n")
    # a machine that is yet to be made has no key
    address = mine["pve_container_ip"].split("/")[0]
    known = copy / "known_hosts"
    kept = [line for line in known.read_text().splitlines() if not line.startswith(f"{address} ")]
    known.write_text("\n".join(kept) + "\n")
    inside(host, f"mv {place} {place}.away")
    yield copy
    lab("destroy", container)
    inside(host, f"test -e {place} || mv {place}.away {place}; rm -f {place}.away")
    assert rackwell("provision", container, "-i", site, "--no-bench").code == 0


@more
def test_a_bare_machine_is_provisioned_without_a_packet_to_anywhere(
    site: Path, offline: Path, closed: Closed, container: str
) -> None:
    address = yaml.safe_load((offline / f"host_vars/{container}.yml").read_text())["pve_container_ip"].split("/")[0]
    built = closed.run("build", "-i", offline)
    assert built.code == 0, built.json["problems"]
    done = closed.run("provision", container, "-i", offline, "--no-bench")
    assert done.code == 0, done.json["problems"]
    # the laboratory's own shell asks the site's known_hosts, which has no key of this one
    key = next(line for line in (offline / "known_hosts").read_text().splitlines() if line.startswith(f"{address} "))
    with (site / "known_hosts").open("a") as known:
        known.write(f"{key}\n")
    assert inside(container, "dpkg-query -W -f '${db:Status-Status}' nginx") == "installed"
    accepted = closed.run("verify", container, "--acceptance", "-i", offline)
    assert accepted.code == 0, accepted.json["problems"]
    verdicts = {check["item"]: check["verdict"] for check in accepted.result["containers"][0]["checks"]}
    assert {verdicts[item] for item in verdicts if item.startswith("proxy/")} == {"pass"}
    again = closed.run("provision", container, "-i", offline, "--no-bench")
    assert (again.code, again.result["changed"]) == (0, 0), again.result["changes"]
    assert closed.left() == {"controller": 0, "machines": 0, "machines to here": 0}


@more
def test_what_the_mirror_lacks_is_told_and_nothing_else_is_asked(
    offline: Path, mirror: Path, closed: Closed, container: str, tmp_path: Path
) -> None:
    poor = tmp_path / "mirror"
    shutil.copytree(mirror, poor)
    manifest = json.loads((poor / "manifest.json").read_text())
    wheel = next(path for path in manifest["files"] if "/sglang-" in path)
    del manifest["files"][wheel]
    (poor / "manifest.json").write_text(json.dumps(manifest))
    copy = tmp_path / "site"
    shutil.copytree(offline, copy, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
    for path in (copy / "group_vars/all.yml", copy / f"host_vars/{container}.yml"):
        path.write_text(path.read_text().replace(str(mirror), str(poor)))
    done = closed.run("build", "-i", copy)
    assert (done.code, done.codes) == (1, ["mirror-incomplete"])
    assert "sglang" in done.json["problems"][0]["what"]
    assert closed.left()["controller"] == 0


@more
def test_a_web_server_is_a_mirror_too(
    offline: Path, mirror: Path, closed: Closed, container: str, tmp_path: Path
) -> None:
    served = "import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 8099), h.SimpleHTTPRequestHandler)"
    program = f"{served}; print('ready', flush=True); s.serve_forever()"
    copy = tmp_path / "site"
    shutil.copytree(offline, copy, symlinks=True, ignore=shutil.ignore_patterns(".rackwell", "*.lock"))
    for path in (copy / "group_vars/all.yml", copy / f"host_vars/{container}.yml"):
        path.write_text(path.read_text().replace(str(mirror), "http://127.0.0.1:8099"))
    command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=mirror, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().strip() == "ready"
            done = closed.run("build", "-i", copy)
        finally:
            server.terminate()
    assert done.code == 0, done.json["problems"]
    digests = {one["build"]: one["digest"] for one in done.result["releases"]}
    theirs = {link.name: link.resolve().name for link in (offline / ".rackwell/builds").iterdir()}
    assert digests.items() <= theirs.items()
