# SPDX-License-Identifier: Apache-2.0
"""Passwords that Ansible needs: a file of the operator's, or asked for at the terminal and never written anywhere."""

from __future__ import annotations

import atexit
import getpass
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rackwell.errors import ExitCode, Problem, RackwellError

VAULT = "ANSIBLE_VAULT_PASSWORD_FILE"
BECOME = "ANSIBLE_BECOME_PASSWORD_FILE"


def provide(vault_file: Path | None, *, ask_vault: bool, ask_become: bool) -> None:
    """Have Ansible, wherever this process starts it, find the passwords.

    Raises:
        RackwellError: the file is not there, or there is no terminal to ask at (exit 2).
    """
    if vault_file is not None:
        if not vault_file.is_file():
            raise _invalid("vault-password-missing", "there is no such file of the vault's password", str(vault_file))
        # ansible-playbook runs in the directory of the run
        os.environ[VAULT] = str(vault_file.absolute())
    if ask_vault:
        os.environ[VAULT] = _asked("Vault password: ")
    if ask_become:
        os.environ[BECOME] = _asked("BECOME password: ")


def _asked(prompt: str) -> str:
    """A program that prints what was typed, for as long as this process lives.

    The password stays in this process's memory: the program holds only the way to it, so that nothing is left on a disk
    even when this process is killed.
    """
    if not sys.stdin.isatty():
        raise _invalid("no-terminal", "a password cannot be asked for without a terminal", "standard input")
    handle = os.memfd_create("rackwell", os.MFD_CLOEXEC)
    os.write(handle, getpass.getpass(prompt).encode() + b"\n")
    folder = tempfile.mkdtemp(prefix="rackwell-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = Path(folder) / "password"
    program.write_text(f"#!/bin/sh\nexec cat /proc/{os.getpid()}/fd/{handle}\n")
    program.chmod(0o700)
    return str(program)


def _invalid(code: str, what: str, where: str) -> RackwellError:
    fix = "give --vault-password-file FILE, or set ANSIBLE_VAULT_PASSWORD_FILE"
    return RackwellError(Problem(code, what, where, "", fix), ExitCode.INVALID)
