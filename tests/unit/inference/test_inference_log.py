# SPDX-License-Identifier: Apache-2.0
"""What is told of a failed start."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log as log

DIED = """\
[2026-11-29 20:00:00] server_args=ServerArgs(model_path='/m', api_key='hunter2', error_budget=None)
[2026-11-29 20:00:01 TP0] Load weight begin. avail mem=94.10 GB
Capturing batches (bs=4 avail_mem=1.0 GB):  50%|##   | 3/6 [00:00<00:00, 34.00it/s]
[2026-11-29 20:00:02 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/x/scheduler.py", line 1, in run
    self.load()
torch.OutOfMemoryError: CUDA out of memory on rank 0

[2026-11-29 20:00:02 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/x/scheduler.py", line 1, in run
torch.OutOfMemoryError: CUDA out of memory on rank 1

[2026-11-29 20:00:02] Received sigquit from a child process. It usually means the child failed.
[2026-11-29 20:00:02] kill_process_tree called: parent_pid=1, include_parent=True, pid=1""".splitlines()

PORT = """\
[2026-11-29 20:00:03] INFO:     Application startup complete.
[2026-11-29 20:00:03] ERROR:    [Errno 98] error while attempting to bind on address ('::1', 1): address already in use
[2026-11-29 20:00:03] INFO:     Waiting for application shutdown.
[2026-11-29 20:00:04] The server is fired up and ready to roll!
[2026-11-29 20:00:04] kill_process_tree called: parent_pid=1, include_parent=False, pid=1""".splitlines()

USAGE = [
    "usage: launch_server.py [-h] --model-path MODEL_PATH",
    "                        [--tokenizer-path TOKENIZER_PATH] [--on-error X]",
    "launch_server.py: error: unrecognized arguments: --no-such-flag 7",
]


def test_only_the_first_ranks_traceback_is_told() -> None:
    told = log.telling(DIED)
    assert told[0].endswith("Traceback (most recent call last):")
    assert told[-1] == "torch.OutOfMemoryError: CUDA out of memory on rank 0"
    assert not any("rank 1" in line or "kill_process_tree" in line or "it/s" in line for line in told)
    assert log.last_error(DIED) == "torch.OutOfMemoryError: CUDA out of memory on rank 0"


def test_a_bind_failure_is_told_without_the_lie_after_it() -> None:
    told = log.telling(PORT)
    assert "address already in use" in told[-1]
    assert not any("fired up" in line for line in told)


def test_wrong_usage_is_told_without_the_usage_text() -> None:
    assert log.telling(USAGE) == [USAGE[-1]]


def test_without_an_error_the_last_lines_are_told() -> None:
    lines = [f"[2026-11-29 20:00:00] step {n}" for n in range(100)]
    assert log.telling(lines, limit=3) == lines[-3:]


def test_a_long_traceback_keeps_its_head_and_its_end() -> None:
    lines = ["Traceback (most recent call last):", *(f'  File "f{n}"' for n in range(50)), "ValueError: end"]
    told = log.telling(lines, limit=10)
    assert len(told) == 10
    assert (told[0], told[-1]) == (lines[0], lines[-1])


@pytest.mark.parametrize("lines", [DIED, PORT, USAGE])
def test_fatal_lines_are_seen(lines: list[str]) -> None:
    assert log.first_fatal(lines) is not None


def test_an_ordinary_start_is_not_fatal() -> None:
    lines = [*DIED[:3], "[2026-11-29 20:00:05] The server is fired up and ready to roll!"]
    assert log.first_fatal(lines) is None
    assert log.said_ready(lines)
    assert not log.said_ready(lines[:3])


def test_keys_are_not_told() -> None:
    assert "hunter2" not in log.redact(DIED[0])
    assert log.redact("--api-key hunter2 --port 1") == "--api-key *** --port 1"


def test_what_is_diagnosed_has_the_beginning_the_failure_and_the_end_and_no_secret() -> None:
    many = [f"[2026-11-29 20:00:00 TP0] NCCL INFO channel {n}" for n in range(5000)]
    told = log.for_diagnosis([DIED[0], *many, *DIED, *many, "the last word", "x" * 5000])
    assert len(told) < 700
    assert "hunter2" not in "\n".join(told)
    assert {"torch.OutOfMemoryError: CUDA out of memory on rank 0", "the last word"} <= set(told)
    assert any(line.endswith("lines left out") for line in told)
    assert max(map(len, told)) <= 1000
    assert log.for_diagnosis(DIED)[-1] == DIED[-1]
