# SPDX-License-Identifier: Apache-2.0
"""How a declared container comes to be on a Proxmox VE host: checked, created or changed, started, opened for ssh."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import (
    POLL_S,
    Pve,
    conf_changed,
    conf_no_space,
    unwritable,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Change, Conf, lines
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import Wanted, applied, as_options, foreign
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_preflight import check_ours
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError, problem
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import (
    RawWanted,
    raw_changes,
    settled,
    text_of,
)


class StopError(Exception):
    """A signal asked the module to end."""


class StolenError(Exception):
    """The number was taken between the look and the creation; the text is what `pct` said."""


# creation ---------------------------------------------------------------------------


def left_out(conf: Conf, want: RawWanted) -> list[str]:
    """Keys of raw lines that are declared, and that Proxmox VE does not show."""
    return sorted({change.key for change in raw_changes(conf.raw, settled(conf.raw, want)) if change.after is not None})


def creation_options(want: Wanted, storage: str, disk_size: int) -> dict[str, str]:
    """The options of `pct create`."""
    return {**as_options(want), "rootfs": f"{storage}:{disk_size}"}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ending signals become :class:`StopError`."""

    def stop(number: int, _frame: object) -> None:
        raise StopError(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def create_and_start(
    pve: Pve, vmid: int, template: str, options: Mapping[str, str], raw: Optional[RawWanted] = None
) -> None:
    """A new container that runs; when that fails, what this call made is destroyed again.

    Raises:
        PveError: with what became of the container.
    """
    with interruptible():
        try:
            rc, text = pve.create(vmid, template, options)
            if rc != 0 and re.search(rf"\b(CT|VM) {vmid} already exists", text):
                # whoever was faster owns it: it must not go through the removal below
                raise StolenError(text)
            if rc != 0:
                code = "no-space" if "No space left" in text else "create-failed"
                raise problem(
                    code,
                    f"pct create {vmid} failed",
                    pve.node,
                    f"exit {rc}: {text[-1500:]}",
                    "see what it says, then run again",
                )
            if raw is not None and raw.all_lines():
                _write_raw(pve, vmid, "", raw)
            rc, text = pve.act("start", vmid)
            if rc != 0:
                raise problem(
                    "start-failed",
                    f"the new container {vmid} does not start",
                    pve.node,
                    f"exit {rc}: {text[-1500:]}",
                    "see what it says, then run again",
                )
        except StolenError as error:
            raise problem(
                "busy",
                f"container {vmid} was made by somebody else meanwhile",
                f"{pve.node}: container {vmid}",
                f"{error}; it was not touched",
                "run again: what is there is then held against the declaration",
            ) from None
        except StopError as signal_name:
            raise _after_removal(
                pve,
                vmid,
                options["hostname"],
                problem(
                    "interrupted",
                    f"the creation of container {vmid} was interrupted",
                    pve.node,
                    f"received {signal_name}",
                    "run again",
                ),
            ) from None
        except PveError as error:
            raise _after_removal(pve, vmid, options["hostname"], error) from None


def _after_removal(pve: Pve, vmid: int, hostname: str, error: PveError) -> PveError:
    """The same problem, saying what became of the half-made container."""
    told = remove(pve, vmid, hostname)
    found = error.finding
    return problem(found.code, found.what, found.where, f"{found.why}; {told}", found.fix, **error.extra)


def remove(pve: Pve, vmid: int, hostname: str) -> str:
    """Destroy a container that this call made, and say so. One that became somebody else's is left alone."""
    try:
        if not pve.exists(vmid):
            return "nothing of it is left"
        conf = pve.options(vmid)
        # PVE writes tags and hostname only at the end of a creation: until then the lock is all there is
        if conf.current.get("lock") != "create" and foreign(conf, hostname):
            return f"{foreign(conf, hostname)}; it is somebody else's and was not touched"
        if "lock" in conf.current:
            pve.act("unlock", vmid)
        rc, text = pve.act("destroy", vmid, "--force", "1", "--purge", "1")
    except PveError as error:
        if error.finding.code == "vmid-foreign":
            return f"{error.finding.what}, which was not touched"
        rc, text = 1, error.finding.what
    return (
        "the container made by this run was destroyed again"
        if rc == 0
        else f"it could not be removed ({text}): pct destroy {vmid} --force 1"
    )


def settle_creation(pve: Pve, vmid: int, hostname: str, seconds: int, check_mode: bool) -> bool:
    """Whether the container exists, after a creation of it by someone else has ended or left its half-made rest.

    Raises:
        PveError: another creation goes on for longer than ``seconds``; or what is locked is not ours.
    """
    deadline = time.monotonic() + seconds
    while pve.exists(vmid):
        conf = pve.options(vmid)
        if conf.current.get("lock") != "create":
            return True
        pid = pve.being_created(vmid)
        if pid is None:
            check_ours(conf, vmid, hostname, pve.node)
            if not check_mode:
                told = remove(pve, vmid, hostname)
                if pve.exists(vmid):
                    raise problem(
                        "create-unfinished",
                        f"container {vmid} is the rest of an interrupted creation",
                        pve.node,
                        told,
                        f"pct unlock {vmid}; pct destroy {vmid}",
                    )
            return False
        if time.monotonic() > deadline:
            raise problem(
                "busy",
                f"container {vmid} is being created by another process",
                f"{pve.node}: pid {pid}",
                f"it had not ended after {seconds} s",
                "wait for it, then run again",
            )
        time.sleep(POLL_S)
    return False


# change --------------------------------------------------------------------------------


def _write_raw(pve: Pve, vmid: int, digest: str, raw: RawWanted) -> RawWanted:
    """Write the raw lines; returns what takes them back.

    Raises:
        PveError: the file changed meanwhile or cannot be written, or Proxmox VE does not take a line; it is as it was.
    """
    before = pve.edit_raw(vmid, digest, raw)
    back = RawWanted({}, before.raw())
    refused_keys = left_out(pve.conf(vmid), raw)
    if refused_keys:
        pve.edit_raw(vmid, "", back)
        raise problem(
            "raw-refused",
            f"Proxmox VE does not take the raw lines {', '.join(refused_keys)}",
            f"{pve.node}: container {vmid}",
            "they stood in the file, and it left them out; the file was set back",
            "correct pve_container_raw: pct config shows the lines that it takes",
        )
    return back


def change(
    pve: Pve,
    vmid: int,
    todo: Sequence[Change],
    running: bool,
    restart: bool,
    seconds: int,
    conf: Optional[Conf] = None,
    raw: Optional[RawWanted] = None,
) -> None:
    """Make the changes, and restart or start the container; return to what was when it does not come back.

    Args:
        conf: what the changes were decided for; when the file is another one by now, nothing is changed.
        raw: the raw lines, when they have to change too.

    Raises:
        PveError: `pct set` refused them (nothing changed), or the container failed with them (and was set back).
    """
    digest = conf.digest if conf else ""
    back: Optional[RawWanted] = None
    if raw is not None:
        back = _write_raw(pve, vmid, digest, raw)
        digest = pve.digest(vmid)
    if todo:
        rc, text = pve.set(vmid, todo, digest)
        if rc != 0:
            if back is not None:
                pve.edit_raw(vmid, "", back)
            raise _set_failed(pve, vmid, rc, text)
    if running and not restart:
        return
    rc, text = pve.act("reboot", vmid) if running else pve.act("start", vmid)
    why = f"exit {rc}: {text[-1500:]}"
    if rc == 0:
        try:
            pve.wait_for_systemd(vmid, seconds)
            return
        except PveError as error:
            why = error.finding.why
    if not (todo or raw is not None) or not running:
        raise problem(
            "start-failed",
            f"container {vmid} does not start",
            f"{pve.node}: container {vmid}",
            why,
            f"pct start {vmid} --debug shows more",
        )
    verified = _set_back(pve, vmid, todo, seconds, back)
    told = "it was set back and runs as before" if verified else "it was set back, but does not run: it needs a person"
    raise problem(
        "start-failed",
        f"container {vmid} does not start with the changed declaration",
        f"{pve.node}: container {vmid}",
        f"{why}; {told}",
        f"correct the declaration ({', '.join([c.key for c in todo] + (['raw lines'] if raw is not None else []))})",
        rolled_back=True,
        rollback_verified=verified,
    )


def _set_failed(pve: Pve, vmid: int, rc: int, text: str) -> PveError:
    """What `pct set` said, told with its cause."""
    if "detected modified configuration" in text:
        return conf_changed(vmid, pve.node)
    if "No space left" in text:
        return conf_no_space(vmid, pve.node, text[-300:])
    if "no quorum" in text or "Read-only file system" in text:
        return unwritable(vmid, pve.node, text[-300:])
    if re.search(r"CT is locked|can't lock file", text):
        return problem(
            "locked",
            f"container {vmid} is locked",
            f"{pve.node}: container {vmid}",
            f"{text[-300:]}; nothing was changed",
            f"wait until that task has ended, then run again; a lock that is left over: pct unlock {vmid}",
        )
    return problem(
        "set-failed",
        f"pct set {vmid} failed",
        f"{pve.node}: container {vmid}",
        f"exit {rc}: {text[-1500:]}",
        "see what it says and correct the declaration",
    )


def _set_back(pve: Pve, vmid: int, todo: Sequence[Change], seconds: int, back: Optional[RawWanted] = None) -> bool:
    """Undo the changes and start; whether it runs again."""
    with contextlib.suppress(PveError):
        if back is not None:
            pve.edit_raw(vmid, "", back)
        rc = pve.set(vmid, [change.inverse() for change in todo])[0] if todo else 0
        if rc != 0:
            return False
        if pve.running(vmid):
            rc, _ = pve.act("reboot", vmid)
        else:
            rc, _ = pve.act("start", vmid)
        return rc == 0 and bool(pve.wait_for_systemd(vmid, seconds))
    return False


# ssh ---------------------------------------------------------------------------------------


def key_lines(text: str) -> list[str]:
    """The keys of a public key file.

    Raises:
        PveError: it holds no public key, or something else.
    """
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not found or any(not _key_parts(line) for line in found):
        raise problem(
            "ssh-key-invalid",
            "the declared ssh key is no public key",
            "pve_container_ssh_public_key_file",
            "its lines do not have the form 'ssh-ed25519 AAAA… comment'",
            "name the .pub file; ssh-keygen -t ed25519 makes a pair",
        )
    return found


def missing_keys(pve: Pve, vmid: int, wanted: Sequence[str]) -> list[str]:
    """Those of the keys that root's authorized_keys does not have; comments and options do not matter."""
    rc, out, _ = pve.inside(vmid, ["cat", "/root/.ssh/authorized_keys"])
    there = [_key_parts(line) for line in out.splitlines()] if rc == 0 else []
    return [line for line in wanted if _key_parts(line) not in there]


def _key_parts(line: str) -> list[str]:
    """Type and key of an authorized_keys line, whatever options stand before them."""
    words = line.split()
    for index, word in enumerate(words[:-1]):
        if word.startswith(("ssh-", "ecdsa-", "sk-")):
            return words[index : index + 2]
    return []


def put_keys(pve: Pve, vmid: int, keys: Sequence[str]) -> None:
    """Append keys to root's authorized_keys.

    Raises:
        PveError: the container refused it.
    """
    script = (
        "umask 077; mkdir -p /root/.ssh && chmod 700 /root/.ssh && "
        'f=/root/.ssh/authorized_keys; [ ! -s $f ] || [ -z "$(tail -c1 $f)" ] || echo >> $f; cat >> $f && chmod 600 $f'
    )
    rc, out, err = pve.inside(vmid, ["sh", "-c", script], data="".join(key + "\n" for key in keys))
    if rc != 0:
        raise problem(
            "ssh-key-failed",
            "the ssh key cannot be put into the container",
            f"{pve.node}: container {vmid}",
            f"exit {rc}: {(out + err).strip()}",
            f"look: pct exec {vmid} -- ls -la /root/.ssh",
        )


def host_keys(pve: Pve, vmid: int) -> list[str]:
    """The public host keys of the container's ssh server, as ``type key``.

    Raises:
        PveError: there are none.
    """
    rc, out, err = pve.inside(vmid, ["sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"])
    found = sorted(" ".join(line.split()[:2]) for line in out.splitlines() if line.startswith(("ssh-", "ecdsa-")))
    if rc != 0 or not found:
        raise problem(
            "ssh-missing",
            "the container has no ssh host keys",
            f"{pve.node}: container {vmid}",
            err.strip() or "no /etc/ssh/ssh_host_*_key.pub",
            "use a template that has openssh-server; pve_container_template",
        )
    return found


def diff(
    node: str,
    vmid: int,
    before: Optional[Mapping[str, str]],
    todo: Sequence[Change],
    options: Mapping[str, str],
    raw: tuple[Sequence[tuple[str, str]], Sequence[tuple[str, str]]] = ((), ()),
) -> dict[str, str]:
    """Ansible's diff: the configuration's lines before and after; a new container has no before.

    Args:
        raw: the ``lxc.*`` lines before and after.
    """
    name = f"{node}:/etc/pve/lxc/{vmid}.conf"
    after = options if before is None else applied(before, todo)
    texts = ["".join(text_of(line) + "\n" for line in side) for side in raw]
    return {
        "before_header": name,
        "after_header": name,
        "before": lines(before or {}) + texts[0],
        "after": lines(after) + texts[1],
    }
