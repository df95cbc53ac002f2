# SPDX-License-Identifier: Apache-2.0
"""The proxy as the role makes it, before a recording stand-in of the engine: real nginx, on the loopback alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_keys, proxy_set
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_nginx import Nginx, NginxError
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_probe import Door
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_self_signed import SelfSigned

sys.path.insert(0, str(Path(__file__).parent))
from api_proxy_engine import Engine

REPOSITORY = Path(__file__).parents[2]
ROLE = REPOSITORY / "roles" / "api_proxy"
# scripts/setup brings it, without a service; a machine without it must not pass by skipping
NGINX = shutil.which("nginx") or next(
    (
        str(path)
        for path in (Path("/usr/sbin/nginx"), Path(sys.prefix) / "nginx/usr/sbin/nginx")
        if os.access(path, os.X_OK)
    ),
    "nginx",
)
PATIENCE = 30.0

ALICE = "sk-MARKED-alice-0123456789abcdefGHIJ"
BOB = "sk-MARKED-bob+99~x.y/z=0123456789abcd"
ENGINE = "sk-MARKED-engine-0123456789abcdef"
KEYS = {"alice": ALICE, "bob": BOB}
LISTED = {("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health")}


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until `holds` gives something true, and return it."""
    deadline = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


_HERE, _PORT, _ENGINE_PORT = "/RWP-PLACE", 65001, 65002


@functools.cache
def _rendered(given: str) -> str:
    """The role's template, by Ansible itself; with marks in the place of what differs from test to test."""
    variables = {
        "api_proxy_address": "127.0.0.1",
        "api_proxy_port": _PORT,
        "__api_proxy_user": pwd.getpwuid(os.getuid()).pw_name,
        "__api_proxy_run": f"{_HERE}/run",
        "__api_proxy_cache": f"{_HERE}/cache",
        "__api_proxy_log": f"syslog:server=unix:{_HERE}/log.sock,nohostname,tag=rackwell_api_proxy",
        "__api_proxy_engine": {"url": f"http://127.0.0.1:{_ENGINE_PORT}", "api_key": ENGINE},
        # what the tests ask is not to be refused for its number; the limits have tests of their own
        "api_proxy_rate": 100000,
        "api_proxy_rate_address": 100000,
        "api_proxy_workers": 2,
        **json.loads(given),
    }
    content = "{{ lookup('ansible.builtin.template', '" + str(ROLE / "templates/nginx.conf.j2") + "') }}"
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")],
        "vars": {"ansible_python_interpreter": sys.executable},
    }
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "nginx.conf"
        play["tasks"] = [{"ansible.builtin.copy": {"content": content, "dest": str(target), "mode": "0600"}}]
        (Path(folder) / "play.json").write_text(json.dumps([play]))
        (Path(folder) / "vars.json").write_text(json.dumps(variables))
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,"]
        done = subprocess.run(
            [*command, f"{folder}/play.json", "-e", f"@{folder}/vars.json"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "0"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return target.read_text()


def render(place: Path, port: int, engine: int, **given: Any) -> str:
    """The configuration for a place, its port and its engine's."""
    text = _rendered(json.dumps(given, sort_keys=True))
    for mark, value in ((_HERE, str(place)), (str(_PORT), str(port)), (str(_ENGINE_PORT), str(engine))):
        assert mark in text
        text = text.replace(mark, value)
    return text


class Local(Nginx):
    """nginx without systemd: a process of its own, with what the unit would do."""

    def __init__(self, place: Path, unit: str = "unit-1") -> None:
        super().__init__(str(place / "run"), str(place / "cache"))
        self.place, self.unit, self.is_enabled = place, unit, False
        self.did: list[str] = []

    @property
    def pid(self) -> int:
        """The process that holds the workers; 0 when there is none."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.place / "run/nginx.pid").read_text())
            os.kill(pid, 0)
            return pid
        return 0

    def installed(self) -> bool:
        return True

    def test(self, configuration: str) -> None:
        self._call("-t", "-q", "-c", configuration)

    def started_with(self) -> str | None:
        return (self.place / "run/unit").read_text() if self.pid else None

    def enabled(self) -> bool:
        return self.is_enabled

    def do(self, *verbs: str) -> None:
        for verb in verbs:
            self.did.append(verb)
            if verb in {"stop", "restart"} and self.pid:
                self.end()
            if verb in {"start", "restart"}:
                (self.place / "run/unit").write_text(self.unit)
                self._call("-c", f"{self.place}/root/live/nginx.conf", "-g", "daemon on; master_process on;")
                eventually(lambda: self.pid, "nginx did not write its pid")
            if verb == "reload":
                self._call("-t", "-q", "-c", f"{self.place}/root/live/nginx.conf")
                os.kill(self.pid, signal.SIGHUP)
            if verb in {"enable", "disable"}:
                self.is_enabled = verb == "enable"

    def end(self) -> None:
        """End the process and its workers."""
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: self.pid != pid, "nginx did not end")
            (self.place / "run/status.sock").unlink(missing_ok=True)

    def workers(self) -> set[int]:
        """The processes that handle requests."""
        with contextlib.suppress(OSError):
            return set(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))
        return set()

    def _call(self, *arguments: str) -> None:
        done = subprocess.run(
            [NGINX, "-e", "stderr", "-p", str(self.place), *arguments],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=(self.place / "stderr").open("wb"),
        )
        if done.returncode != 0:
            raise NginxError(" ".join((self.place / "stderr").read_text(errors="replace").split()))


class Place:
    """Directories, the log, an engine, and nginx: what a container has."""

    #: what the engine is told of who asks
    told = f"Bearer {ENGINE}"

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("run", "cache", "root"):
            (path / name).mkdir(mode=0o700)
        self.engine = Engine()
        self.port = free_port()
        self.door = Door("127.0.0.1", self.port)
        self.nginx = Local(path)
        self.log: list[str] = []
        self._log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._log.bind(str(path / "log.sock"))
        threading.Thread(target=self._listen, daemon=True).start()
        self.own = SelfSigned(str(path / "own"))
        self.own.make(["localhost", "127.0.0.1"])

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.log.append(self._log.recv(1 << 20).decode(errors="replace"))

    def files(self, keys: Mapping[str, str] = KEYS, engine_key: str = ENGINE, **given: Any) -> dict[str, str]:
        """The files of a set."""
        text = render(self.path, self.port, self.engine.port, **given)
        return {
            proxy_set.CONFIGURATION: text,
            proxy_set.KEYS: proxy_keys.render(keys, engine_key),
            proxy_set.CERTIFICATE: Path(self.own.certificate).read_text(),
            proxy_set.KEY: Path(self.own.key).read_text(),
        }

    def start(self, **given: Any) -> None:
        """Have nginx run with a set, without all that the module does for it."""
        sets = proxy_set.Sets(str(self.path / "root"))
        want = proxy_set.wanted(self.files(**given))
        sets.write(want)
        sets.switch(want.name)
        self.nginx.do("start")
        eventually(lambda: self.door.ask("GET", "/none").status == 404, "nginx does not listen")

    def close(self) -> None:
        """End all of it."""
        self.nginx.end()
        self.engine.close()
        self._log.close()
        shutil.rmtree(self.path, ignore_errors=True)

    # ---- clients ---------------------------------------------------------------------------------------------

    def connect(self, alpn: str = "http/1.1", timeout: float = PATIENCE) -> ssl.SSLSocket:
        """A connection of a client."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.own.certificate)
        context.set_alpn_protocols([alpn])
        plain = socket.create_connection(("127.0.0.1", self.port), timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname="localhost")

    def raw(self, data: bytes, quiet: float = 1.0) -> bytes:
        """Send bytes, and read until the other side has nothing more to say."""
        with self.connect() as stream:
            with contextlib.suppress(OSError):
                stream.sendall(data)
            return read_all(stream, quiet)


def read_all(stream: ssl.SSLSocket, quiet: float = 1.0) -> bytes:
    """All that comes until the end, or until nothing came for a while."""
    found = b""
    stream.settimeout(quiet)
    with contextlib.suppress(OSError):
        while more := stream.recv(65536):
            found += more
    return found


def request(
    line: str, *headers: str, key: str = ALICE, body: bytes = b"", close: bool = True, host: str = "localhost"
) -> bytes:
    """The bytes of a request."""
    lines = [line, f"Host: {host}", *([f"Authorization: Bearer {key}"] if key else []), *headers]
    lines += ["Connection: close"] if close else []
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def status_of(answer: bytes) -> int:
    """The status of the first answer in what came; 0 when none came."""
    head = answer.split(b"\r\n", 1)[0].split()
    return int(head[1]) if len(head) > 1 and head[0].startswith(b"HTTP/") else 0


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A place; short, since the name of a socket must be."""
    made = Place(Path(tempfile.mkdtemp(prefix="rwp-")))
    try:
        yield made
    finally:
        made.close()
