# SPDX-License-Identifier: Apache-2.0
"""The real router on the loopback, in front of three stand-ins of the engine, each a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
SOURCE = TESTS.parent / "plugins" / "module_utils" / "router_agent.py"
NAMES = ("glm5-01", "glm5-02", "glm5-03")
sys.path.insert(0, str(TESTS / "roll"))


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_engine = _loaded("engine_fixtures", TESTS / "unit" / "engine" / "conftest.py")
package = _engine.package
environment = _engine.environment

#: the router's own side as it lies on its machine: one file, without ansible
agent = _loaded("router_agent_alone", SOURCE)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


@dataclasses.dataclass
class Lab:
    """Engines, router, and the router's own side.

    Attributes:
        place: where the router's files are. ports: of the engines.
    """

    root: Path
    place: Any
    ports: dict[str, int]
    command: Callable[[str], list[str]]
    environment: dict[str, str]
    engines: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    router: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return str(self.side.url)

    @property
    def side(self) -> Any:
        """The router's own side, as each of its commands makes it."""
        return agent.Router(self.place)

    def start(self, name: str, wait: bool = True) -> None:
        log = (self.root / f"{name}.log").open("ab")
        self.engines[name] = subprocess.Popen(self.command(name), stdout=log, stderr=log, env=self.environment)
        if wait:
            until(lambda: bool(agent.healthy(f"http://127.0.0.1:{self.ports[name]}")))

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """As systemd stops it: SIGTERM, and wait; the engine ends its requests first."""
        self.engines[name].send_signal(number)
        self.engines[name].wait(180)

    def route(self) -> None:
        """Start the router, as its unit does."""
        code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import router_agent as agent; "
        code += f"sys.exit(agent.main(['run'], agent.Place(*{tuple(self.place)!r})))"
        log = (self.root / "router.log").open("ab")
        self.router = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
        self.side.keep(180)

    def unroute(self, number: int = signal.SIGTERM) -> None:
        assert self.router is not None
        self.router.send_signal(number)
        self.router.wait(180)

    def ask(self, **request: Any) -> tuple[int, dict[str, Any]]:
        """A command of the router's own side, as a process on its machine."""
        code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import router_agent as agent; "
        code += f"sys.exit(agent.main(['ask'], agent.Place(*{tuple(self.place)!r})))"
        done = subprocess.run(
            [sys.executable, "-I", "-c", code], input=json.dumps(request), capture_output=True, text=True, check=False
        )
        return done.returncode, json.loads(done.stdout)

    def rotation(self) -> dict[str, bool]:
        """Worker -> whether requests go there."""
        return {one["name"]: one["listed"] and one["healthy"] for one in self.side.look()["workers"]}


@pytest.fixture
def lab(package: Path, environment: Callable[..., dict[str, str]], tmp_path: Path) -> Iterator[Lab]:
    """Three engines that serve, and a router in front of them."""
    model = tmp_path / "toy"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Toy"], "max_position_embeddings": 4096}))
    behaviour = {"load_seconds": 0.2, "warmup_seconds": 0.1, "health_seconds": 0, "drain_poll_seconds": 0.05}
    (model / "rackwell-lab-engine.json").write_text(json.dumps(behaviour))
    place = agent.Place(*(str(tmp_path / name) for name in ("router.json", "workers.json", "state", "run")))
    Path(place.runtime).mkdir()
    ports = {name: free_port() for name in NAMES}

    def command(name: str) -> list[str]:
        words = [sys.executable, "-m", "rackwell_lab_engine", "--model-path", str(model), "--served-model-name", "toy"]
        return [*words, "--port", str(ports[name]), "--enable-metrics"]

    settings = {
        "address": "127.0.0.1",
        "port": free_port(),
        "metrics_port": free_port(),
        "policy": "round_robin",
        "flags": {"log-level": "warn"},
        "drain_timeout": 30,
        "api_key": "",
    }
    Path(place.settings).write_text(json.dumps(settings))
    workers = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    Path(place.workers).write_text(json.dumps({"workers": workers}))
    made = Lab(tmp_path, place, ports, command, environment())
    try:
        for name in NAMES:
            made.start(name, wait=False)
        until(lambda: all(agent.healthy(url) for url in workers.values()))
        made.route()
        yield made
    finally:
        for process in [*made.engines.values(), made.router]:
            if process is not None and process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
