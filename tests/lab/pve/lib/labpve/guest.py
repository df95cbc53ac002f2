# SPDX-License-Identifier: Apache-2.0
"""STAND-IN (see the package). What PVE writes into a Debian guest before each start: name, network, resolver, ssh keys.

Everything is written by a child that has changed its root into the container, so that no symbolic link of the guest
leads out of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from .errors import PveError
from .host import SHIFT
from .schema import parse_properties

BEGIN, END = "# --- BEGIN PVE ---\n", "# --- END PVE ---\n"
HOST_KEYS = {"rsa": "ssh_host_rsa_key", "ecdsa": "ssh_host_ecdsa_key", "ed25519": "ssh_host_ed25519_key"}


def in_root(root: Path, action: Callable[[], None]) -> None:
    """Run ``action`` in a child whose root directory is the container's."""
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            os.chroot(root)
            os.chdir("/")
            action()
            failed = 0
        finally:  # the child must never return into the caller's code
            if failed:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(failed)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise PveError(f"error in setup task PVE::LXC::Setup::pre_start_hook ({root})")


def put(path: str, text: str, owner: int, mode: int = 0o644) -> None:
    """Write a file of the guest when it differs; called inside :func:`in_root`."""
    target = Path(path)
    if target.is_symlink():
        target.unlink()
    if target.exists() and target.read_text(errors="replace") == text:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    os.chown(target, owner, owner)
    target.chmod(mode)


def block(old: str, new: str) -> str:
    """``old`` with PVE's marked part replaced by ``new``; put at the top when there is none."""
    kept = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), "", old, flags=re.DOTALL)
    return BEGIN + new + END + kept


def interfaces(keys: dict[str, str], net_schema: dict[str, object]) -> str:
    """/etc/network/interfaces of ifupdown for the net entries of the configuration."""
    text = "auto lo\niface lo inet loopback\n\n"
    for key in sorted(k for k in keys if re.fullmatch(r"net\d+", k)):
        net = parse_properties(keys[key], net_schema)
        text += f"auto {net['name']}\n"
        ip = net.get("ip", "manual")
        if ip in ("dhcp", "manual"):
            text += f"iface {net['name']} inet {ip}\n\n"
            continue
        text += f"iface {net['name']} inet static\n\taddress {ip}\n"
        if "gw" in net:
            address = ip.split("/")[0]
            text += f"\tgateway {net['gw']}\n" if address else ""
        text += "\n"
    return text


def set_up(root: Path, keys: dict[str, str], net_schema: dict[str, object]) -> None:
    """Write name, network and resolver into the container's files."""
    owner = SHIFT if keys.get("unprivileged") == "1" else 0
    name = keys.get("hostname", "CT")
    resolver = "".join(f"nameserver {a}\n" for a in re.split(r"[ ,;]+", keys.get("nameserver", "")) if a)
    host_resolver = Path("/etc/resolv.conf")
    if not resolver and host_resolver.exists():
        lines = host_resolver.read_text().splitlines()
        resolver = "".join(line + "\n" for line in lines if line.startswith(("nameserver", "search")))
    net = parse_properties(keys["net0"], net_schema) if "net0" in keys else {}
    address = net.get("ip", "").split("/")[0]
    hosts_line = f"{address if re.match(r'[0-9.]+$', address) else '127.0.1.1'} {name}\n"
    wired = interfaces(keys, net_schema)

    def write() -> None:
        put("/etc/hostname", name.split(".")[0] + "\n", owner)
        hosts = Path("/etc/hosts")
        old = hosts.read_text() if hosts.is_file() else "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
        put("/etc/hosts", block(old, hosts_line), owner)
        put("/etc/resolv.conf", BEGIN + resolver + END, owner)
        put("/etc/network/interfaces", wired, owner)

    in_root(root, write)


def make_host_keys(root: Path, hostname: str, owner: int) -> None:
    """New ssh host keys: those of the template must not be shared by its containers."""
    if not (root / "etc/ssh").is_dir():
        return
    for kind, name in HOST_KEYS.items():
        print(f"Creating SSH host key '{name}' - this may take some time ...", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / name
            made = subprocess.run(
                ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{hostname}", "-f", str(file)],
                check=False,
                capture_output=True,
                text=True,
            )
            if made.returncode != 0:
                raise PveError(f"creating SSH host key failed: {made.stderr.strip()}")
            shown = subprocess.run(
                ["ssh-keygen", "-l", "-E", "sha256", "-f", str(file)], check=False, capture_output=True, text=True
            )
            secret, public = file.read_text(), file.with_suffix(".pub").read_text()

        def write(name: str = name, secret: str = secret, public: str = public) -> None:
            put(f"/etc/ssh/{name}", secret, owner, 0o600)
            put(f"/etc/ssh/{name}.pub", public, owner, 0o644)

        in_root(root, write)
        print("done: " + " ".join(shown.stdout.split()[1:3]), flush=True)
