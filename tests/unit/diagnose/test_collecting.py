# SPDX-License-Identifier: Apache-2.0
"""What is read from machines for a diagnosis: bounded, of the right start, and in spite of what does not answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import diagnosis_read as read
from ansible_collections.rackwell.gpu.plugins.module_utils.bounded import DeadlineError
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_container import Container
from ansible_collections.rackwell.gpu.plugins.module_utils.diagnosis_host import Host

NOW, BEFORE, STOPPED = "a" * 32, "b" * 32, "c" * 32
UNIT = "rackwell-inference.service"


class Machine:
    """Answers commands by what their words contain; what is not there is a command that is missing."""

    def __init__(self, answers: Mapping[str, str | int | Exception]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.now = 0.0

    def run(self, words: Sequence[str], seconds: float, **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(words))
        self.now += 1
        line = " ".join(words)
        for sign, answer in self.answers.items():
            if sign in line:
                if isinstance(answer, Exception):
                    raise answer
                return subprocess.CompletedProcess(words, 0, str(answer))
        return subprocess.CompletedProcess(words, 127, f"{words[0]}: not found")

    def reader(self, seconds: float = 1000, prefix: Sequence[str] = ()) -> read.Reader:
        return read.Reader(seconds, prefix, lambda: self.now, self.run)


def entries(*rows: tuple[str, str]) -> str:
    return "\n".join(json.dumps({"INVOCATION_ID": invocation, "MESSAGE": text}) for invocation, text in rows)


SHOWN = f"LoadState=loaded\nActiveState=failed\nInvocationID={NOW}\nExecMainStartTimestampMonotonic=900000000\n"
SYSTEMD = entries(
    (BEFORE, "rackwell-inference.service: Failed with result 'exit-code'."),
    (STOPPED, "Stopping rackwell-inference.service..."),
    (STOPPED, "rackwell-inference.service: Failed with result 'signal'."),
    (NOW, "rackwell-inference.service: Failed with result 'signal'."),
)


def container(answers: Mapping[str, str | int | Exception], *, quick: bool = True) -> dict[str, Any]:
    found = Container(Machine(answers).reader(), UNIT, "/opt/rackwell").collect(quick)
    found["by"] = {source["name"]: source for source in found["sources"]}
    return found


def test_this_start_and_the_failed_one_before_are_told_apart_and_a_stop_is_no_failure() -> None:
    found = container(
        {
            "systemctl show": SHOWN,
            "_PID=1": SYSTEMD,
            "_SYSTEMD_INVOCATION_ID=" + NOW: entries((NOW, "this start")),
            "_SYSTEMD_INVOCATION_ID=" + BEFORE: entries((BEFORE, "the one before")),
        }
    )
    assert (found["by"]["journal"]["text"], found["by"]["journal"]["earlier"]) == ("this start", False)
    assert (found["by"]["journal-before"]["text"], found["by"]["journal-before"]["earlier"]) == ("the one before", True)
    assert found["facts"]["started_monotonic"] == 900.0


def test_a_container_that_was_never_provisioned() -> None:
    found = container({"systemctl show": "LoadState=not-found\n"})
    assert [source["name"] for source in found["sources"]] == ["unit"]
    assert "not-found" in found["by"]["unit"]["unread"]


def test_a_driver_that_hangs_keeps_nothing_else_from_being_read() -> None:
    hung = DeadlineError(["nvidia-smi"], 10, "Sun Nov 29")
    found = container({"systemctl show": SHOWN, "nvidia-smi": hung, "free -m": "Mem: 1"}, quick=False)
    assert "did not answer in 10 s" in found["by"]["nvidia-smi"]["unread"]
    assert found["by"]["memory"]["text"] == "Mem: 1"


def test_keys_and_tokens_do_not_leave_the_container() -> None:
    found = container(
        {
            "systemctl show": SHOWN,
            "_SYSTEMD_INVOCATION_ID=" + NOW: entries((NOW, "server_args=ServerArgs(api_key='hunter22', tp_size=8)")),
            "systemctl cat": "ExecStart=/x \\\n    --api-key hunter22 \\\n    --tp-size 8\n",
            "inference.env": 'HF_TOKEN="hunter22"\nNCCL_P2P_LEVEL="SYS"\n',
        },
        quick=False,
    )
    assert "hunter22" not in json.dumps(found)
    assert "tp_size=8" in json.dumps(found)
    assert "NCCL_P2P_LEVEL" in found["by"]["environment"]["text"]


KERNEL = """\
[    0.000000] Linux version 6.8.12-4-pve
[  100.000000] Memory cgroup out of memory: Killed process 9 (other)
[  200.000000] NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus.
[  880.000000] usb 1-1: new device
[  901.000000] Memory cgroup out of memory: Killed process 10 (sglang::schedul)"""


def test_of_the_kernels_log_before_the_start_only_hardware_counts() -> None:
    found = Host(Machine({"dmesg": KERNEL}).reader(), None, 900.0).collect()
    by = {source["name"]: source["text"] for source in found["sources"]}
    assert by["kernel"].splitlines() == KERNEL.splitlines()[3:]
    assert by["kernel-earlier"].splitlines() == [KERNEL.splitlines()[2]]


def test_a_kernel_ring_that_lost_its_beginning_is_read_from_the_journal() -> None:
    journal = "[    0.000000] pve1 kernel: Linux\n[  200.000000] pve1 kernel: NVRM: Xid (PCI:0000:11:00): 79"
    machine = Machine({"journalctl --dmesg": journal, "dmesg": "[  300.0] late"})
    found = Host(machine.reader(), None, None).collect()
    assert found["sources"][0]["text"].endswith("[  200.000000] NVRM: Xid (PCI:0000:11:00): 79")


def test_the_log_of_the_containers_newest_start_is_found_by_the_index_of_tasks() -> None:
    upid = "UPID:pve1:0001A2B3:0C0FFEE0:6A0B1C2{}:vzstart:201:root@pam:"
    index = f"{upid.format('4')} 6A0B1C30 OK\n{upid.format('5')} 6A0B1C31 startup for container '201' failed\n"
    machine = Machine({"tasks/index": index, "tasks/5/": "lxc_init: 845 Failed to run lxc.hook.pre-start"})
    host = Host(machine.reader(), 201, None)
    host.container()
    by = {source.name: source for source in host.sources}
    assert by["pct-start"].text == "lxc_init: 845 Failed to run lxc.hook.pre-start"
    assert "failed" in by["pct-start"].unread


def test_a_container_is_asked_through_its_host() -> None:
    machine = Machine({"systemctl show": SHOWN})
    Container(machine.reader(prefix=["pct", "exec", "201", "--"]), UNIT, "/opt/rackwell").start()
    assert all(words[:4] == ["pct", "exec", "201", "--"] for words in machine.asked)


def test_when_the_time_is_over_nothing_more_is_asked() -> None:
    machine = Machine({"": "x"})
    reader = machine.reader(seconds=1)
    assert reader.ask("one").text == "x"
    assert reader.ask("two") == read.Answer("", "not asked: the time for all of it was over")
    assert len(machine.asked) == 1


@pytest.mark.parametrize("lines", [10, 100_000])
def test_a_text_is_bounded_and_keeps_its_beginning_and_its_end(lines: int) -> None:
    text = "\n".join(f"line {n}" for n in range(lines))
    kept = read.clipped(text, 10_000)
    assert len(kept) < 10_200
    assert kept.startswith("line 0\n")
    assert kept.endswith(f"line {lines - 1}")


def test_one_endless_line_is_cut() -> None:
    assert len(read.clipped("x" * 10_000_000)) < 5000
