# SPDX-License-Identifier: Apache-2.0
"""Real git repositories behind a real git daemon on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "somebody",
    "GIT_AUTHOR_EMAIL": "somebody@example.org",
    "GIT_COMMITTER_NAME": "somebody",
    "GIT_COMMITTER_EMAIL": "somebody@example.org",
    "GIT_AUTHOR_DATE": "2026-02-03T04:05:06Z",
    "GIT_COMMITTER_DATE": "2026-02-03T04:05:06Z",
}

BACKEND = '''\
"""A build backend of the standard library alone, which builds as carelessly as it may: times, order, compression."""
import base64, hashlib, os, pathlib, time, zipfile
try:
    import helper_tool
    TOOL = helper_tool.VALUE
except ImportError:
    TOOL = None

VERSION = "0.5.11"

def get_requires_for_build_wheel(settings=None):
    return REQUIRES

REQUIRES = []

def build_wheel(folder, settings=None, metadata=None):
    version = os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION") or VERSION
    info = f"sglang-{version}.dist-info"
    files = {path.as_posix(): path.read_bytes() for path in pathlib.Path("sglang").rglob("*") if path.is_file()}
    files[info + "/METADATA"] = f"Metadata-Version: 2.1\\nName: sglang\\nVersion: {version}\\nLicense: MIT\\n".encode()
    files[info + "/METADATA"] += b"Requires-Dist: helper>=1\\n"
    files[info + "/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: careless\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    if TOOL is not None:
        files["sglang/tool.txt"] = str(TOOL).encode()
    rows = [f"{name},,\\n" for name in files] + [info + "/RECORD,,\\n"]
    files[info + "/RECORD"] = "".join(rows).encode()
    name = f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files, key=lambda text: hashlib.sha256(text.encode() + os.urandom(4)).digest()):
            archive.writestr(zipfile.ZipInfo(path, time.gmtime()[:6]), files[path])
    return name
'''

PROJECT = {
    "python/pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "careless"\nbackend-path = ["."]\n',
    "python/careless.py": BACKEND,
    "python/sglang/__init__.py": "__version__ = '0.5.11'\n",
    "python/sglang/runner.py": "".join(f"line {n}\n" for n in range(1, 41)),
    "python/sglang/subst.py": "COMMIT = '$Format:%H$'\n",
    "python/sglang/lines.py": "one\ntwo\n",
    ".gitattributes": "lines.py text eol=crlf\nsubst.py export-subst\nrunner.py export-ignore\n",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder`."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=_ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


class Server:
    """Repositories below `root`, served at `url`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, name: str) -> str:
        """Where the repository `name` is."""
        return f"git://127.0.0.1:{self.port}/{name}"

    def create(self, name: str) -> Path:
        """A repository to commit in."""
        folder = self.root / name
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
        return folder

    def commit(self, name: str, files: Mapping[str, str], message: str = "change") -> str:
        """Commit `files` to the repository `name`, and return the commit."""
        folder = self.root / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode())
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", message)
        return git(folder, "rev-parse", "HEAD")

    def start(self) -> None:
        """Serve, on a port that is free (the same one again after `stop`)."""
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [
                *("git", "daemon", "--listen=127.0.0.1", f"--port={self.port}", "--reuseaddr", "--export-all"),
                *("--log-destination=none", f"--base-path={self.root}", str(self.root)),
            ],
            env=_ENVIRONMENT,
            start_new_session=True,
        )
        for _ in range(1000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("git daemon does not listen")

    def stop(self) -> None:
        """End the daemon and its children."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            while self._listens():  # `git daemon` has a child that does
                time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
                probe.listen()
            except OSError:
                return True
        return False


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Server]:
    """A running server."""
    root.mkdir(parents=True, exist_ok=True)
    server = Server(root)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def cut_after(server: Server, count: int) -> Iterator[int]:
    """A port that leads to `server`, and cuts each connection once it has answered `count` bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    near, _ = listening.accept()
                except OSError:
                    return
                with near, socket.create_connection(("127.0.0.1", server.port)) as far:
                    threading.Thread(target=pass_on, args=(near, far), daemon=True).start()
                    left = count
                    while left and (data := far.recv(min(left, 4096))):
                        near.sendall(data)
                        left -= len(data)
                    for end in (near, far):
                        with contextlib.suppress(OSError):
                            end.shutdown(socket.SHUT_RDWR)

        def pass_on(near: socket.socket, far: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := near.recv(4096):
                    far.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def other_python() -> str | None:
    """A Python of another version than this one, with which a second build can be made; None when there is none."""
    names = [os.environ.get("RACKWELL_OTHER_PYTHON", ""), *(f"python3.{minor}" for minor in (13, 12, 11, 14))]
    for name in names:
        if path := shutil.which(name):
            script = "import sys; print(sys.version_info[:2])"
            said = subprocess.run([path, "-c", script], check=False, capture_output=True, text=True).stdout.strip()
            if said and said != str(sys.version_info[:2]):
                return path
    return None
