# SPDX-License-Identifier: Apache-2.0
"""What ssh says when a host cannot be reached, and what to do about it."""

from __future__ import annotations

import re

from rackwell.errors import Problem

_PREFIX = re.compile(r"^(task failed: )?(failed to connect to the host via ssh:? ?)?", re.IGNORECASE)

_ADDRESS = re.compile(r"host key (?:is known )?for (\S+) (?:and|has)", re.IGNORECASE)

# (text in ssh's answer, code, what, fix); the first that occurs counts
_KINDS = (
    (
        "remote host identification has changed",
        "host-key-changed",
        "another ssh host key than the known one",
        "after a reinstallation: ssh-keygen -R {address} -f SITE/known_hosts, then add the new key after comparing it",
    ),
    (
        "host key verification failed",
        "host-key-unknown",
        "the ssh host key is not known",
        "add it after comparing it with the machine's own console: ssh-keyscan {address} >> SITE/known_hosts",
    ),
    (
        "host key is known",
        "host-key-unknown",
        "the ssh host key is not known",
        "ssh-keyscan {address} >> SITE/known_hosts",
    ),
    (
        "permission denied",
        "ssh-denied",
        "ssh was refused",
        "let the key of ansible_ssh_private_key_file in there (one with a passphrase needs ssh-agent)",
    ),
    ("could not resolve hostname", "host-unknown", "the name does not resolve", "correct ansible_host"),
    ("connection refused", "ssh-refused", "no ssh server answers", "see that the machine is up and sshd runs"),
    (
        "no route to host",
        "no-route",
        "there is no way to the address",
        "see that the machine is up; correct ansible_host",
    ),
    ("network is unreachable", "no-route", "there is no way to the address", "correct ansible_host or the network"),
    ("timed out", "ssh-timeout", "no answer in time", "see that the machine is up and the address is right"),
    ("connection closed", "ssh-lost", "the connection was lost", "see that the machine is up, and run again"),
    ("broken pipe", "ssh-lost", "the connection was lost", "see that the machine is up, and run again"),
)


def problem(host: str, message: str) -> Problem:
    """The problem behind `message`, which Ansible gave for unreachable `host`."""
    text = _PREFIX.sub("", message.strip())
    low = text.lower()
    for sign, code, what, fix in _KINDS:
        if sign in low:
            removal = re.search(r"ssh-keygen -f \S+ -R \S+", text)
            way = f"after a reinstallation: {removal[0]}; then add the new key after comparing it" if removal else fix
            # known_hosts has addresses; the name in the inventory may be nobody's
            found = _ADDRESS.search(text)
            way = way.replace("{address}", found[1] if found else "ADDRESS")
            return Problem(code, f"{host} is unreachable: {what}", host, _telling_line(text, sign), way)
    return Problem("unreachable", f"{host} is unreachable", host, " ".join(text.split())[:300], f"try: ssh root@{host}")


def _telling_line(text: str, sign: str) -> str:
    for line in text.splitlines():
        if sign in line.lower():
            return line.strip(" @\r\n")
    return " ".join(text.split())[:300]
