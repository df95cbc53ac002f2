# SPDX-License-Identifier: Apache-2.0
"""How the controller reaches hosts and containers: a key pair of the instance, and checked host keys."""

from __future__ import annotations

from pathlib import Path

from rwlab import files
from rwlab.paths import Instance
from rwlab.proc import run
from rwlab.record import Record


def key(instance: Instance) -> Path:
    """The private key; made when absent."""
    secret = instance.site / "id_ed25519"
    public = secret.with_name("id_ed25519.pub")
    if not (secret.exists() and public.exists()):
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"rackwell-lab {instance.name}", "-f", str(secret)])
    return secret


def public_key(instance: Instance) -> str:
    """One line for authorized_keys."""
    return key(instance).with_name("id_ed25519.pub").read_text()


def ssh(instance: Instance, address: str, *options: str) -> list[str]:
    """The command line that logs in as root, for people and for the laboratory itself."""
    return [
        "ssh",
        *("-F", "none"),
        *("-i", str(key(instance))),
        *("-o", f"UserKnownHostsFile={instance.site / 'known_hosts'}"),
        *("-o", "GlobalKnownHostsFile=none"),
        *("-o", "StrictHostKeyChecking=yes"),
        *("-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=5"),
        *("-o", "LogLevel=ERROR"),
        *options,
        f"root@{address}",
    ]


def know_hosts(instance: Instance, record: Record) -> None:
    """Put the hosts' keys into the site's known_hosts, as an operator would. Other lines (containers') stay."""
    path = instance.site / "known_hosts"
    lines = path.read_text().splitlines() if path.exists() else []
    for host in record.hosts:
        text = (instance.host(host.name).tree / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
        address, wanted = record.address(host.octet), " ".join(text.split()[:2])
        lines = [line for line in lines if line.split()[:1] != [address] or line == f"{address} {wanted}"]
        if f"{address} {wanted}" not in lines:
            lines.append(f"{address} {wanted}")
    files.write(path, "".join(f"{line}\n" for line in lines))


def forget(instance: Instance, address: str) -> None:
    """Remove an address from the site's known_hosts."""
    path = instance.site / "known_hosts"
    lines = path.read_text().splitlines() if path.exists() else []
    files.write(path, "".join(f"{line}\n" for line in lines if line.split()[:1] != [address]))
