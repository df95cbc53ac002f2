# SPDX-License-Identifier: Apache-2.0
"""The instance's site: an Ansible inventory with this laboratory's machines, rendered from tests/lab/site/."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rwlab import files, gpus, hosts, real, standins
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.paths import SOURCE, Cache, HostPaths, Instance
from rwlab.proc import run
from rwlab.record import Host, Record

TEMPLATES = SOURCE / "site/site"
# for each host, container and suite
EACH = SOURCE / "site/each"
MODEL = "/srv/models/toy"
# Python of a suite's containers, and the build made for it
_PYTHON = {"bookworm": ("3.11", "lab"), "trixie": ("3.13", "lab-313")}
_PLACEHOLDER = re.compile(r"@([A-Z0-9_]+)@")


@dataclasses.dataclass(frozen=True)
class Container:
    """A container that the site declares; rackwell makes it, not the laboratory."""

    name: str
    host: str
    vmid: int
    octet: int
    suite: str


def declared(record: Record) -> list[Container]:
    """One container a host, which takes all its GPUs; the suites are dealt out to the hosts in order."""
    return [
        Container(
            name=f"glm5-{number:02}",
            host=host.name,
            vmid=200 + number,
            octet=20 + number,
            suite=record.suites[number - 1] if number <= len(record.suites) else record.suites[0],
        )
        for number, host in enumerate(record.hosts, start=1)
    ]


def containers(instance: Instance, record: Record, host: Host, ssh: list[str] | None) -> list[dict[str, Any]]:
    """The host's declared containers and their state: ``absent`` until made, ``unknown`` while the host is down."""
    listed: dict[int, str] | None = None
    if ssh:
        done = run([*ssh, "pct", "list"], check=False, timeout=30)
        listed = {int(line[:10]): line[11:21].strip() for line in done.stdout.splitlines() if line[:1].isdigit()}
    return [
        {
            "name": container.name,
            "host": container.host,
            "vmid": container.vmid,
            "address": record.address(container.octet),
            "suite": container.suite,
            "state": "unknown" if listed is None else listed.get(container.vmid, "absent"),
        }
        for container in declared(record)
        if container.host == host.name
    ]


def models(paths: HostPaths) -> None:
    """The model directory of a host. What `lab.py set engine` changed stays until `reset`."""
    target = paths.models / Path(MODEL).name
    for source in sorted((SOURCE / "site/model").iterdir()):
        if source.name == ENGINE_FILE and (target / source.name).exists():
            continue
        files.write(target / source.name, source.read_bytes())
    # the service user of an unprivileged container is "other" here
    for directory in (paths.models, target):
        directory.chmod(0o755)


ENGINE_FILE = "rackwell-lab-engine.json"


def render(instance: Instance, record: Record, cache: Cache, driver: Path | None) -> None:
    """Write the site. A file that is as it should be keeps its time; .rackwell/ and locks are not touched."""
    wheel = standins.engine_wheel(cache)
    values: dict[str, str] = {
        "HOSTS": _lines(host.name for host in record.hosts),
        "CONTAINERS": _lines(container.name for container in declared(record)),
        "DRIVER_VERSION": record.driver_version,
        "GPUS": str(len(real.nodes_of_gpus()) if record.gpus == "real" else 8),
        "MODULES": ", ".join(real.modules() if record.gpus == "real" else gpus.MODULES),
        "DISABLE_HMM": "false" if record.gpus == "real" else "true",
        "GATEWAY": record.address(1),
        "MODEL": MODEL,
        "RUN_FILE": str(driver or "absent.run"),
        "RUN_SHA256": hashlib.sha256(driver.read_bytes()).hexdigest() if driver else "0" * 64,
        "PROBE_SIZE": "256" if record.gpus == "real" else "16",
        "ENGINE_WHEEL": wheel.name if wheel else "absent.whl",
    }
    written = {
        path.relative_to(TEMPLATES).with_suffix(""): fill(path.read_text(), values, path)
        for path in sorted(TEMPLATES.rglob("*.in"))
    }
    for host in record.hosts:
        template = EACH / "host.yml.in"
        own = {"ADDRESS": record.address(host.octet)}
        written[Path("host_vars", f"{host.name}.yml")] = fill(template.read_text(), values | own, template)
    nameserver = re.search(r"^nameserver\s+(\d+\.\d+\.\d+\.\d+)\s*$", hosts.resolver(), re.MULTILINE)
    for container in declared(record):
        template = EACH / "container.yml.in"
        own = {
            "HOST": container.host,
            "VMID": str(container.vmid),
            "NAME": container.name,
            "TEMPLATE": f"local:vztmpl/{cache.template(container.suite).name}",
            "ADDRESS": record.address(container.octet),
            "BUILD": _PYTHON[container.suite][1],
        }
        text = fill(template.read_text(), values | own, template)
        if nameserver:
            text += f"pve_container_nameserver: {nameserver[1]}\n"
        written[Path("host_vars", f"{container.name}.yml")] = text
    for suite in dict.fromkeys(container.suite for container in declared(record)):
        template = EACH / "build.yml.in"
        python, name = _PYTHON[suite]
        written[Path("builds", f"{name}.yml")] = fill(template.read_text(), values | {"PYTHON": python}, template)
    _write(instance.site, written)
    _copy_parts(instance.site, wheel)


def fill(text: str, values: Mapping[str, str], where: Path) -> str:
    """``text`` with each ``@NAME@`` replaced; Jinja's braces are left to Ansible.

    Raises:
        LabError: a name that has no value.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise LabError("template-broken", f"no value for {match[0]}", where=str(where))
        return values[match[1]]

    return _PLACEHOLDER.sub(value, text)


def _lines(names: Any) -> str:
    return "\n".join(f"        {name}:" for name in names)


def _write(root: Path, written: Mapping[Path, str]) -> None:
    """Write what differs, and remember what was written, so that a change by hand is not lost without a word."""
    note = root / ".rendered.json"
    before: dict[str, str] = files.read_json(note) or {}
    now = {}
    for name, text in written.items():
        path, digest = root / name, hashlib.sha256(text.encode()).hexdigest()
        old = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
        if old not in (None, digest, before.get(str(name))):
            kept = path.with_name(f"{path.name}.changed")
            path.replace(kept)
            say("site", f"{name} was changed by hand: it is rendered anew, the change is kept in {kept.name}")
        files.write(path, text)
        now[str(name)] = digest
    files.write_json(note, now)


def _copy_parts(root: Path, wheel: Path | None) -> None:
    """The engine's wheel, and its patch beside the builds that name it."""
    if wheel:
        for old in (root / "wheels").glob("rackwell_lab_engine-*.whl"):
            if old.name != wheel.name:
                old.unlink()
        files.write(root / "wheels" / wheel.name, wheel.read_bytes())
    patches = SOURCE / "engine/patches"
    for path in sorted(patches.rglob("*")):
        if path.is_file():
            files.write(root / "builds/patches" / path.relative_to(patches), path.read_bytes())
