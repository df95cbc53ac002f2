# SPDX-License-Identifier: Apache-2.0
"""Real plays on this machine, through the local connection."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackwell.ansible import runner
from rackwell.ansible.runner import KEEP_RUNS, RunDirectory
from rackwell.errors import ExitCode

HOSTS = """\
all:
  hosts:
    here:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    return tmp_path


def playbook(site: Path, tasks: str) -> str:
    path = site / "play.yml"
    path.write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{tasks}")
    return str(path)


def test_a_play_runs_and_is_logged(site: Path) -> None:
    name = playbook(
        site,
        "    - name: Touch\n      ansible.builtin.copy: {dest: '{{ inventory_dir }}/x', content: y, mode: '0600'}\n",
    )
    seen = []
    for expected in (1, 0):
        run = RunDirectory.create(site / ".rackwell", "test")
        result = runner.play(name, site, run, ["here"], listener=seen.append)
        assert (result.exit_code, result.changed) == (ExitCode.DONE, expected)
    assert (site / "x").read_text() == "y"
    assert [step.outcome for step in seen if step.outcome] == ["changed", "ok"]
    assert "Touch" in run.log.read_text()
    # what ansible-runner leaves behind holds the whole environment
    assert [path.name for path in run.path.iterdir()] == ["log.txt"]


def test_check_mode_changes_nothing(site: Path) -> None:
    task = "    - ansible.builtin.copy: {dest: '{{ inventory_dir }}/x', content: y, mode: '0600'}\n"
    name = playbook(site, task)
    run = RunDirectory.create(site / ".rackwell", "test")
    result = runner.play(name, site, run, ["here"], listener=lambda step: None, check=True, diff=True)
    assert result.changed == 1
    assert "+y" in result.changes[0].diff
    assert not (site / "x").exists()


def test_extra_variables_reach_the_play(site: Path) -> None:
    name = playbook(site, "    - ansible.builtin.assert: {that: colour == 'blue and green'}\n")
    run = RunDirectory.create(site / ".rackwell", "test")
    result = runner.play(name, site, run, ["here"], listener=lambda step: None, extra={"colour": "blue and green"})
    assert result.exit_code == ExitCode.DONE


def test_an_unknown_playbook_says_so(site: Path) -> None:
    run = RunDirectory.create(site / ".rackwell", "test")
    result = runner.play("nope", site, run, ["here"], listener=lambda step: None)
    assert result.exit_code == ExitCode.FAILED
    assert "rackwell.gpu.nope" in result.problems[0].why


def test_run_directories_are_private_and_pruned(tmp_path: Path) -> None:
    made = [RunDirectory.create(tmp_path, "x") for _ in range(KEEP_RUNS + 3)]
    assert len(list((tmp_path / "runs").iterdir())) == KEEP_RUNS
    assert made[-1].path.stat().st_mode & 0o777 == 0o700


def test_other_commands_do_not_take_away_the_directory_of_a_run(tmp_path: Path) -> None:
    provision = RunDirectory.create(tmp_path, "provision")
    for _ in range(KEEP_RUNS + 1):
        RunDirectory.create(tmp_path, "status")
    assert provision.path.is_dir()


def lives(pid: int) -> bool:
    """Whether a process runs; a dead one that init has not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


INTERRUPTED = """
import sys
from pathlib import Path
from rackwell.ansible import runner
site = Path(sys.argv[1])
run = runner.RunDirectory.create(site / ".rackwell", "test")
result = runner.play(sys.argv[2], site, run, ["here"], listener=lambda step: None)
print("running", result.running, "changed", result.changed, flush=True)
sys.exit(int(result.exit_code))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_its_like_end_the_play_and_tell_what_ran(site: Path, number: signal.Signals) -> None:
    fifo = site / "fifo"
    os.mkfifo(fifo)
    # the second task says its process id, then waits for what never comes
    name = playbook(
        site,
        "    - name: First\n      ansible.builtin.command: 'true'\n"
        f"    - name: Second\n      ansible.builtin.shell: echo $$ > {fifo}; exec sleep 1000\n",
    )
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(site), name], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(fifo.read_text())  # waits until the task is there
        process.send_signal(number)
        output, _ = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "running [('here', 'Second')] changed 1" in output
    assert not lives(pid)


def test_what_an_interrupted_play_left_running_is_ended(site: Path) -> None:
    """Ansible's worker may end before it has passed the signal on; here: a process that does not take it."""
    fifo = site / "fifo"
    os.mkfifo(fifo)
    name = playbook(
        site,
        f"    - name: Second\n      ansible.builtin.shell: trap '' INT TERM; echo $$ >{fifo}; exec setsid sleep 999\n",
    )
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(site), name], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(fifo.read_text())
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert not lives(pid)


def test_the_ssh_connections_of_a_play_are_asked_to_end() -> None:
    asked: list[str] = []

    def answer(master: socket.socket) -> None:
        connection, _ = master.accept()
        asked.append("ssh")
        connection.close()

    with socket.socket(socket.AF_UNIX) as listening, runner._control_directory() as folder:
        listening.bind(str(folder / "master"))
        listening.listen()
        threading.Thread(target=answer, args=[listening], daemon=True).start()
    assert asked == ["ssh"]


def test_a_killed_controller_leaves_no_play_behind(site: Path) -> None:
    fifo = site / "fifo"
    os.mkfifo(fifo)
    # the task says its process id, then waits for what never comes
    name = playbook(site, f"    - ansible.builtin.shell: echo $$ > {fifo}; exec sleep 1000\n")
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(site), name], stdout=subprocess.PIPE) as process:
        task = int(fifo.read_text())  # waits until the task is there
        play = next(pid for pid in ancestors(task) if parent(pid) == process.pid)
        ended = os.pidfd_open(play)
        process.kill()
    try:
        assert select.select([ended], [], [], 60)[0], "ansible-playbook goes on without its controller"
    finally:
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.kill(task, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = parent(pid)
