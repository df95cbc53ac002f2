# SPDX-License-Identifier: Apache-2.0
"""Files of an activation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_files as files


def test_a_staged_file_touches_nothing_until_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "d" / "unit"
    files.write(str(path), "old\n")
    staged = files.stage(str(path), "new\n", 0o600)
    assert path.read_text() == "old\n"
    files.commit(staged, str(path))
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["unit"]


def test_a_file_that_cannot_be_staged_leaves_nothing(tmp_path: Path) -> None:
    # a name that is too long once the suffix is on it fails in the same call as a full disk
    path = str(tmp_path / ("x" * 250))
    with pytest.raises(OSError, match="name too long") as failed:
        files.stage(path, "text", 0o644)
    assert failed.value.filename == path
    assert list(tmp_path.iterdir()) == []


def test_a_slot_is_replaced_and_removed(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert files.slot_release(root, "current") is None
    files.switch_slot(root, "current", "a" * 64)
    files.switch_slot(root, "current", "b" * 64)
    assert files.slot_release(root, "current") == "b" * 64
    assert (tmp_path / "current").readlink() == Path("releases") / ("b" * 64)
    files.switch_slot(root, "current", None)
    assert list(tmp_path.iterdir()) == []


def test_the_journal_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.jsonl"
    files.append_record(str(path), event="one")
    files.append_record(str(path), event="two")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["one", "two"]
    assert path.stat().st_mode & 0o077 == 0


def test_the_lock_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "lock")
    code = f"import fcntl, os; fcntl.flock(os.open({path!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with files.exclusive(path) as mine:
        assert mine
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0
        with files.exclusive(path) as second:
            assert not second
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_secrets_are_not_shown() -> None:
    text = 'HF_TOKEN="s3"\nNCCL_P2P_LEVEL="SYS"\n    --api-key "a b" \\\n    --port 1'
    shown = files.without_secrets(text)
    assert "s3" not in shown
    assert "a b" not in shown
    assert 'NCCL_P2P_LEVEL="SYS"' in shown
    assert shown.endswith("--api-key *** \\\n    --port 1")
