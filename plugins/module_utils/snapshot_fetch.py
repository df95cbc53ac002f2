# SPDX-License-Identifier: Apache-2.0
"""The program that brings a snapshot: started by systemd on the Proxmox host as a user without rights, with a job file.

    python -m ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_fetch JOB.json < token

It needs no controller. What it does stands in the state file, which is replaced by rename; killed at any moment, the
next run goes on from the bytes that are there. The token comes by standard input; no file, argument or line has it.
"""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_source import Directory
from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import (
    Entry,
    Manifest,
    Place,
    SnapshotError,
    chosen,
    digest,
    fault,
    flush_folder,
    read_manifest,
    shards_left_out,
    write_manifest,
)

STATE_SCHEMA = "rackwell.weights_state/1"
#: How often a file whose content is wrong is brought again.
_CORRUPT_TRIES = 3
_TOLD = 20
_SIGNED = re.compile(r"(https?://[^\s?\"'\\]+)\?[^\s\"'\\]+")

Source = Any  # Hub or Directory


class State:
    """What others read of the run."""

    def __init__(self, path: str, run: str, secret: str) -> None:
        self._path, self._secret = path, secret
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._open: dict[str, str] = {}
        self._settled = 0
        self.facts: dict[str, Any] = {
            "schema": STATE_SCHEMA,
            "run": run,
            "phase": "listing",
            "files": 0,
            "bytes": 0,
            "done_bytes": 0,
            "fetched_files": 0,
            "fetched_bytes": 0,
            "resumed_bytes": 0,
            "damaged": [],
            "refetched": [],
            "error": None,
        }

    def update(self, **facts: Any) -> None:
        """Set facts and write."""
        with self._lock:
            self.facts.update(facts)
        self.write()

    def add(self, **amounts: Any) -> None:
        """Add to numbers and lists."""
        with self._lock:
            for name, amount in amounts.items():
                self.facts[name] = self.facts[name] + amount

    def begin(self, one: Entry, part: str) -> None:
        """A file begins to arrive in `part`."""
        with self._lock:
            self._open[one.path] = part

    def settle(self, one: Entry) -> None:
        """A file is there."""
        with self._lock:
            self._open.pop(one.path, None)
            self._settled += one.size

    def count(self, size: int) -> None:
        """Bytes of a file that was only read."""
        with self._lock:
            self._settled += size

    def write(self) -> None:
        """Replace the file; a full disk must not keep the last word from being said."""
        with self._lock:
            done = self._settled + sum(_size(part) for part in self._open.values())
            self.facts["done_bytes"] = min(done, self.facts["bytes"]) if self.facts["bytes"] else done
            self.facts["seconds"] = round(time.monotonic() - self._start, 1)
            text = self.redacted(json.dumps(self.facts))
            try:
                with open(self._path + ".new", "w", encoding="utf-8") as stream:
                    stream.write(text)
                os.replace(self._path + ".new", self._path)
            except OSError:
                with open(self._path, "w", encoding="utf-8") as stream:
                    stream.write(text)

    def redacted(self, text: str) -> str:
        """`text` without the token, which an answer may give back, and without the signatures of addresses."""
        text = _SIGNED.sub(r"\1?***", text)
        return text.replace(self._secret, "***") if self._secret else text

    def say(self, text: str) -> None:
        """A line for the journal."""
        print(self.redacted(text), flush=True)


class Fetch:
    """One run."""

    def __init__(self, job: dict[str, Any], source: Source, state: State) -> None:
        self.job, self.source, self.state = job, source, state
        self.place = Place(job["directory"], job["repository"], job["revision"])
        self.folder = self.place.final if os.path.isdir(self.place.final) else self.place.staging
        self.seen = self.folder == self.place.final

    def run(self) -> None:
        """Bring what lacks, or with ``repair: false`` only look. Raises SnapshotError or OSError."""
        known = read_manifest(self.folder, self.place.repository, self.place.revision) if self.seen else None
        wanted = chosen(known.all, self.job["include"], self.job["ignore"]) if known else []
        held = {one.path for one in known.files} if known else set()
        if known is None or any(one.path not in held for one in wanted):
            listed = self.source.listing()
            known = Manifest((), tuple(listed))
            wanted = chosen(listed, self.job["include"], self.job["ignore"])
        if not wanted:
            why = "of %d files the patterns leave none" % len(known.all)
            raise SnapshotError(
                "weights-empty", "nothing of the repository is wanted", self.place.repository, why,
                "correct model.include and model.ignore in the profile",
            )  # fmt: skip
        self.state.update(phase="verifying", files=len(wanted), bytes=sum(one.size for one in wanted))
        lacking = self._lacking(wanted, held)
        if self.job["repair"]:
            if lacking:
                self._room(lacking)
                self.state.update(phase="fetching")
                self._bring(lacking)
            self._complete(known, wanted, bool(lacking))
        elif lacking:
            paths = [one.path for one in lacking]
            self.state.update(phase="failed", damaged=paths[:_TOLD])
            where = os.path.join(self.folder, paths[0])
            why = "%d of %d files: %s" % (len(paths), len(wanted), ", ".join(paths[:5]))
            fix = "provision again: it brings only these anew"
            raise SnapshotError("weights-damaged", "files of the model are missing or damaged", where, why, fix)
        self.state.update(phase="done")

    def _lacking(self, wanted: list[Entry], held: set[str]) -> list[Entry]:
        """What must be brought. Files that nobody vouches for are hashed, and so are all when that is asked for."""

        def wrong(one: Entry) -> bool:
            found = fault(self.folder, one)
            # in the staging directory a file has its name only after it was held against its hash
            if found is None and self.seen and (self.job["verify"] == "sha256" or one.path not in held):
                if digest(os.path.join(self.folder, one.path), one, self.state.count) != one.hash:
                    found = "content"
            elif found is None:
                self.state.count(one.size)
            if found and found != "missing":
                self.state.add(damaged=[one.path] if len(self.state.facts["damaged"]) < _TOLD else [])
                self.state.say("%s: %s" % (one.path, found))
            return found is not None

        with concurrent.futures.ThreadPoolExecutor(self.job["workers"]) as pool:
            return [one for one, bad in zip(wanted, pool.map(wrong, wanted)) if bad]

    def _room(self, lacking: list[Entry]) -> None:
        os.makedirs(self.place.parts, mode=0o755, exist_ok=True)
        there = sum(min(_size(self._part(one)), one.size) for one in lacking)
        need = sum(one.size for one in lacking) - there
        free = os.statvfs(self.place.parent)
        available = free.f_bavail * free.f_frsize
        if need + need // 100 > available:
            raise _no_space(self.place.directory, "%s bytes are needed, %s are available" % (_n(need), _n(available)))

    def _bring(self, lacking: list[Entry]) -> None:
        """All of them, several at a time; the first that fails ends the run."""
        self.state.say("fetching %d files, %s bytes" % (len(lacking), _n(sum(one.size for one in lacking))))
        pool = concurrent.futures.ThreadPoolExecutor(self.job["workers"])
        tasks = [pool.submit(self._bring_one, one) for one in lacking]
        try:
            for task in concurrent.futures.as_completed(tasks):
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            pool.shutdown(wait=False)

    def _bring_one(self, one: Entry) -> None:
        part = self._part(one)
        os.makedirs(self.place.parts, mode=0o755, exist_ok=True)
        if _size(part) > one.size:
            os.unlink(part)
        resumed = _size(part)
        if resumed:
            self.state.say("%s: goes on at byte %s" % (one.path, _n(resumed)))
        self.state.begin(one, part)
        for attempt in range(1, _CORRUPT_TRIES + 1):
            self._transfer(one, part)
            got = digest(part, one) if _size(part) == one.size else "%d bytes" % _size(part)
            if got == one.hash:
                break
            os.unlink(part)
            resumed = 0
            self.state.say("%s: damaged on the way (%s, must be %s)" % (one.path, got, one.hash))
            if attempt == _CORRUPT_TRIES:
                raise SnapshotError(
                    "weights-corrupt", "a file arrives with wrong content", one.path,
                    "%d times; the last was %s, and must be %s: what lies between is broken" % (attempt, got, one.hash),
                    "try another mirror or proxy, then run again",
                )  # fmt: skip
            self.state.add(refetched=[one.path])
        self._put(one, part)
        self.state.settle(one)
        self.state.add(fetched_files=1, fetched_bytes=one.size - resumed, resumed_bytes=resumed)

    def _transfer(self, one: Entry, part: str) -> None:
        """One file's bytes, over broken connections, as long as something arrives."""
        failed = 0
        while True:
            before = _size(part)
            try:
                self.source.get(one, part)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                failed = 1 if _size(part) > before else failed + 1
                if isinstance(error, SnapshotError):
                    raise
                if not self.source.passing(error) or failed >= self.job["attempts"]:
                    raise self.source.explained(error, one.path) from None
                self.state.say("%s: %s; goes on" % (one.path, " ".join(str(error).split())[:200]))
                time.sleep(min(self.job["pause"] * 2 ** (failed - 1), 60))
            else:
                return

    def _put(self, one: Entry, part: str) -> None:
        """Give a verified file its name. A damaged one that is open somewhere stays what it is there."""
        path = os.path.join(self.folder, one.path)
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        if not os.path.realpath(folder).startswith(os.path.realpath(self.folder)):
            why, fix = "a link leads out of the snapshot", "remove the link"
            raise SnapshotError("weights-unfit", "the model's directory cannot be written", folder, why, fix)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        handle = os.open(part, os.O_RDONLY)
        try:
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(part, path)
        flush_folder(folder)

    def _complete(self, known: Manifest, wanted: list[Entry], brought: bool) -> None:
        """Write the manifest, and let the snapshot be seen."""
        lacking = shards_left_out(self.folder, wanted)
        if lacking:
            why = "the index of the weights names %s" % ", ".join(lacking[:3])
            fix = "widen model.include in the profile"
            raise SnapshotError("weights-incomplete", "the patterns leave out weights", self.folder, why, fix)
        names = {one.path for one in wanted}
        files = [*wanted, *(one for one in known.files if one.path not in names)]
        if self.seen:
            # what an earlier run brought for other patterns stays vouched for
            before = read_manifest(self.folder, self.place.repository, self.place.revision)
            names = {one.path for one in files}
            files += [one for one in (before.files if before else ()) if one.path not in names]
        names = {one.path for one in files}
        manifest = Manifest(tuple(files), tuple(one for one in known.all if one.path not in names))
        if brought or not self.seen or read_manifest(self.folder, self.place.repository, self.place.revision) is None:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_manifest(self.folder, self.place, manifest, source=self.source.endpoint, fetched=now)
        if not self.seen:
            shutil.rmtree(self.place.parts, ignore_errors=True)
            os.rename(self.place.staging, self.place.final)
            flush_folder(self.place.parent)
        elif os.path.isdir(self.place.staging):
            shutil.rmtree(self.place.staging, ignore_errors=True)

    def _part(self, one: Entry) -> str:
        # by path and hash: a repository may have the same file twice, and both arrive at once
        return os.path.join(
            self.place.parts, "%s-%s" % (re.sub(r"[^A-Za-z0-9.-]", "_", one.path)[-80:], one.hash[-32:])
        )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _n(number: int) -> str:
    return "{:,}".format(number)


def _no_space(where: str, why: str) -> SnapshotError:
    fix = "free space there or take a larger file system (model_weights_directory), then run again: it goes on"
    return SnapshotError("no-space", "the Proxmox host has too little space for the model", where, why, fix)


def _source(job: dict[str, Any], place: Place, token: str) -> Source:
    if job["from"] == "directory":
        return Directory(place, job["source"])
    from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_hub import Hub

    return Hub(place, job["endpoint"], token, bool(job["xet"]), int(job["piece"]))


class _Late:
    """A source that is made when it is first needed: a snapshot that is whole needs none."""

    def __init__(self, job: dict[str, Any], place: Place, token: str) -> None:
        self._given = (job, place, token)
        self._made: Source = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = _source(*self._given)
        return getattr(self._made, name)


def _ended(error: BaseException, job: dict[str, Any]) -> SnapshotError:
    """Any end of a run as an error that says what to do."""
    if isinstance(error, SnapshotError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(job["directory"], "it ran full while the model arrived; what is there stays")
    if isinstance(error, OSError):
        where, why = str(error.filename or job["directory"]), error.strerror or str(error)
        fix = "make it writable for the user that fetches (chown -R), then run again"
        return SnapshotError("filesystem", "a file operation failed", where, why, fix)
    why = "%s: %s" % (type(error).__name__, error)
    return SnapshotError("fetch-failed", "the program that fetches failed", job["directory"], why, "see its journal")


def main(path: str) -> int:
    """Do the job in the file `path`. The end is in the state file; the exit status says whether it was good."""
    with open(path, encoding="utf-8") as stream:
        job = json.load(stream)
    token = "" if sys.stdin is None else sys.stdin.read().strip()
    os.environ.update(job["environment"])
    state = State(job["state"], job["run"], token)
    state.write()
    over = threading.Event()

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    def tell() -> None:
        while not over.wait(1):
            state.write()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=tell, daemon=True).start()
    place = Place(job["directory"], job["repository"], job["revision"])
    code = 0
    try:
        os.umask(0o022)
        Fetch(job, _Late(job, place, token), state).run()
        state.say("whole: %s" % place.final)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever it was, it is told)
        code = 1
        problem = _ended(error, job)
        if isinstance(error, SystemExit):
            code, where = int(error.code or 1), job["directory"]
            what, why = "the fetch was stopped", "it was told to end (signal %d)" % (code - 128)
            problem = SnapshotError("fetch-stopped", what, where, why, "run again: it goes on where it ended")
        over.set()
        state.update(phase="failed", error=problem.parts)
        state.say("failed: %s" % problem)
    over.set()
    sys.stdout.flush()
    # transfers that still run have no more to say, and would keep the process
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
