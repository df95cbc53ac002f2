# SPDX-License-Identifier: Apache-2.0
"""Bringing a laboratory up and down."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from rwlab import access, bases, files, gpus, hosts, kernel, net, real, site, standins
from rwlab.console import say
from rwlab.errors import LabError
from rwlab.paths import Cache, HostPaths, Instance, cache_root, state_parent
from rwlab.proc import run
from rwlab.record import Host, Record, load, save

FIRST_HOST_OCTET = 11


def require_root() -> None:
    """The laboratory makes containers, bridges and firewall rules."""
    if os.geteuid() != 0:
        raise LabError("not-root", "the laboratory must be run as root", fix="sudo, or a root shell", exit_code=2)
    if not Path("/proc/self/mountinfo").exists():
        raise LabError("no-proc", "/proc is not mounted", fix="mount -t proc proc /proc")


def up(instance: Instance, suites: list[str] | None, count: int | None, nccl: Path | None = None) -> Record:
    """Bring an instance up, whatever state it is in; what is there already is left alone.

    Args:
        suites: whose templates the hosts offer; None keeps what the instance has.
        count: least number of hosts; there is one for each suite, and none is taken away.
        nccl: a libnccl.so.2 for the containers' templates, in the place of the stand-in.

    Raises:
        LabError: something cannot be had or made.
    """
    require_root()
    cache = Cache(cache_root())
    with files.locked(instance.lock, instance.name):
        record = load(instance) or Record()
        # suites are only ever added: containers may have been made from a template
        record.suites = list(dict.fromkeys([*record.suites, *(suites or [])]))
        driver = real.driver(cache) if real.present() else standins.driver(cache)
        library = _nccl(instance, nccl) or (None if real.present() else standins.nccl(cache))
        layer = bases.ensure(cache, record.suites, library)
        record.gpus = "real" if real.present() else "stand-in"
        record.driver_version = real.version() if real.present() else gpus.DRIVER_VERSION
        _declare_hosts(instance, record, max(count or 1, len(record.suites)), layer)
        save(instance, record)  # from here on `down` finds what to remove
        net.up(record, _networks_of_others(instance))
        save(instance, record)
        for host in record.hosts:
            _host_up(instance, record, host, cache)
        access.know_hosts(instance, record)
        site.render(instance, record, cache, driver)
        for host in record.hosts:
            hosts.wait_ready(record, host, access.ssh(instance, record.address(host.octet)))
        save(instance, record)
    return record


def _declare_hosts(instance: Instance, record: Record, count: int, layer: Path) -> None:
    if count > 10:
        raise LabError("too-many-hosts", "a laboratory has at most 10 hosts", exit_code=2)
    for number in range(len(record.hosts), count):
        instance.state.mkdir(parents=True, exist_ok=True)
        rootfs = "overlay" if hosts.overlay_works(instance.state) else "copy"
        record.hosts.append(Host(f"pve{number + 1}", FIRST_HOST_OCTET + number, layer.name, rootfs))


def _host_up(instance: Instance, record: Record, host: Host, cache: Cache) -> None:
    paths = instance.host(host.name)
    layer = cache.root / "layer" / host.layer
    if host.rootfs == "overlay" and not layer.is_dir():
        raise LabError(
            "layer-gone",
            f"the layer that {host.name} stands on is no longer in the cache",
            where=str(layer),
            fix=f"lab.py down --purge --name {instance.name}, then up",
        )
    hosts.find(instance, host)
    hosts.create(paths, host, layer)
    for suite in record.suites:
        template = cache.template(suite)
        files.link_or_copy(template, paths.shared("vz") / "template/cache" / template.name)
    site.models(paths)
    stand_in = record.gpus == "stand-in"
    if stand_in:
        kernel.prepare(paths, host.name)
    extra = {**standins.pve_tools(cache), **standins.host_tools(kernel_messages=stand_in)}
    extra |= standins.driver_tools(cache) if stand_in and not _installed(paths) else {}
    tree = hosts.write_tree(paths, record, host, key=access.public_key(instance), extra=extra)
    if not hosts.running(instance, host):
        say(host.name, "starting")
        if stand_in:
            kernel.boot(paths)
        mounts = kernel.mounts(paths) if stand_in else real.mounts()
        nodes = kernel.nodes_at_boot(paths) if stand_in else real.nodes()
        hosts.start(instance, record, host, layer, mounts=mounts, nodes=nodes)
        host.applied = tree
    elif host.applied != tree:
        say(host.name, "installing changed files")
        hosts.install(host, paths)
        host.applied = tree
    save(instance, record)


def _installed(paths: HostPaths) -> bool:
    """Whether the host's driver came from an installer in it (host/seed-driver), and is not the laboratory's to lay."""
    return any((root / "var/lib/nvidia/rackwell-lab-files").exists() for root in (paths.upper, paths.rootfs))


def _nccl(instance: Instance, given: Path | None) -> Path | None:
    """This instance's own NCCL: kept, so that a later ``up`` without the option makes the same template."""
    kept = instance.state / "nccl/libnccl.so.2"
    if given is not None:
        if not given.is_file() or given.open("rb").read(4) != b"\x7fELF":
            raise LabError(
                "nccl-invalid",
                f"{given} is no library",
                why="--nccl wants the file libnccl.so.2 itself, as in Python's nvidia-nccl packages",
                exit_code=2,
            )
        files.write(kept, given.read_bytes(), 0o755)
    return kept if kept.exists() else None


def reboot(instance: Instance, name: str) -> None:
    """Restart a host as a power cycle does: what is not persistent goes, its containers come back by themselves.

    Waits until the host has started and every container that it started answers on its port 22.
    """
    require_root()
    cache = Cache(cache_root())
    with files.locked(instance.lock, instance.name):
        record = load(instance)
        if record is None:
            raise LabError("absent", f"there is no laboratory {instance.name!r}", exit_code=2)
        host = record.host(name)
        hosts.stop(instance, host)
        save(instance, record)
        _host_up(instance, record, host, cache)
        ssh = access.ssh(instance, record.address(host.octet))
        hosts.wait_ready(record, host, ssh)
        save(instance, record)
        for row in site.containers(instance, record, host, ssh):
            if row["state"] == "running":
                hosts.wait_port(row["address"], row["name"])
            elif row["state"] == "stopped":
                say(row["name"], "was not started")


def _networks_of_others(instance: Instance) -> list[str]:
    return [record.network for other, record in _others(instance) if record.subnet > 0]


def _others(instance: Instance) -> list[tuple[Instance, Record]]:
    """The other laboratories below the same directory; a damaged one holds nothing that matters here."""
    found = []
    for path in sorted(state_parent().glob("*/lab.json")):
        if path.parent != instance.state:
            other = Instance(path.parent.name, path.parent)
            try:
                record = load(other)
            except LabError:
                continue
            if record:
                found.append((other, record))
    return found


def down(instance: Instance, *, purge: bool) -> None:
    """Stop everything of an instance; with ``purge`` remove it too. Does nothing where nothing is."""
    require_root()
    with files.locked(instance.lock, instance.name):
        record = _record_or_purge(instance, purge=purge)
        if record is not None:
            for host in reversed(record.hosts):
                hosts.stop(instance, host)
                save(instance, record)
            if record.subnet > 0:
                run_others = any(hosts.running(other, h) for other, r in _others(instance) for h in r.hosts)
                net.down(record, others_run=run_others)
            save(instance, record)
        if purge and instance.state.exists():
            say(instance.name, "removing its state")
            _remove(instance.state)
        if purge:
            instance.lock.unlink(missing_ok=True)


def _record_or_purge(instance: Instance, *, purge: bool) -> Record | None:
    try:
        return load(instance)
    except LabError as error:
        # a damaged record must not keep its directory from being removed; what runs is then found through LXC
        if not purge:
            raise
        record = Record(subnet=-1)
        record.hosts = [Host(path.name, 0, "") for path in sorted((instance.state / "hosts").glob("*"))]
        say(instance.name, f"{error.what}: its bridge, if any, stays until the machine restarts")
        return record


def destroy(instance: Instance, record: Record, names: list[str]) -> None:
    """Remove containers that rackwell made, and their host keys; one that is not there is fine.

    Raises:
        LabError: a name that the site does not declare, or a host that is down.
    """
    known = {container.name: container for container in site.declared(record)}
    for name in names:
        if name not in known:
            raise LabError(
                "container-unknown", f"no container {name!r}", why=f"there are {', '.join(known)}", exit_code=2
            )
        container = known[name]
        ssh = access.ssh(instance, record.address(record.host(container.host).octet))
        vmid, config = container.vmid, f"/etc/pve/lxc/{container.vmid}.conf"
        run(
            [
                *ssh,
                f"[ ! -e {config} ] || {{ pct stop {vmid}; pct destroy {vmid} --purge 1 --force 1; }}",
            ]
        )
        access.forget(instance, record.address(container.octet))


def _remove(state: Path) -> None:
    """Remove the directory, away from its name first so that an interrupted removal leaves no half instance."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [path for path in mounted if path == str(state) or path.startswith(f"{state}/")]
    if inside:
        raise LabError(
            "still-mounted", "something is mounted inside the laboratory", where=inside[0], fix=f"umount {inside[0]}"
        )
    for leftover in state.parent.glob(f".{state.name}.removed-*"):
        shutil.rmtree(leftover)
    gone = state.with_name(f".{state.name}.removed-{time.time_ns()}")
    state.rename(gone)
    shutil.rmtree(gone)


def status(instance: Instance) -> dict[str, Any]:
    """What there is of an instance, as ``status --json`` prints it."""
    record = load(instance)
    found: dict[str, Any] = {"schema": "rackwell.lab/1", "name": instance.name, "state": "absent"}
    if record is None:
        return found
    host_rows, container_rows = [], []
    for host in record.hosts:
        hosts.find(instance, host)
        up_now = hosts.running(instance, host)
        address = record.address(host.octet)
        ssh = access.ssh(instance, address)
        host_rows.append(
            {
                "name": host.name,
                "address": address,
                "state": "running" if up_now else "stopped",
                "pid": host.pid or None,
                "ssh": ssh,
            }
        )
        container_rows += site.containers(instance, record, host, ssh if up_now else None)
    running = [row["state"] == "running" for row in host_rows]
    found["state"] = "running" if running and all(running) else "partial" if any(running) else "stopped"
    return found | {
        "directory": str(instance.state),
        "site": str(instance.site),
        "network": record.network,
        "bridge": record.bridge,
        "nat": record.nat,
        "gpus": record.gpus,
        "driver_version": record.driver_version,
        "suites": record.suites,
        "hosts": host_rows,
        "containers": container_rows,
    }
