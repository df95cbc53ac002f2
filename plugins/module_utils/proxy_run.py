# SPDX-License-Identifier: Apache-2.0
"""The switch of the proxy to another set of files: tried before, proven after, and taken back when it does not hold."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_nginx as nginxes
from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_probe as probes
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_set import CONFIGURATION, Sets, Wanted

#: no release of the engine may answer it through the proxy, so it tells whether the list holds
FORBIDDEN = "/server_info"
MODELS = "/v1/models"


class ProxyError(Exception):
    """The proxy is not what it should be. `parts` are those of an error; `rolled_back`: what ran before runs again."""

    def __init__(self, code: str, what: str, where: str = "", why: str = "", fix: str = "", back: bool = False) -> None:
        super().__init__(what)
        self.parts = {"code": code, "what": what, "where": where, "why": why, "fix": fix}
        self.rolled_back = back


class Target(NamedTuple):
    """What is to run.

    Attributes:
        want: the set of files. unit: digest of the drop-in.
        door: where it listens. certificate: what it is to show, as DER; empty when that is not known here.
        routes: paths and one method each that need a key. models: whether the models may be asked for.
        key: one that holds. engine: ``HOST:PORT``. engine_key: its own, empty for none.
    """

    want: Wanted
    unit: str
    door: probes.Door
    certificate: bytes
    routes: Sequence[tuple[str, str]]
    models: bool
    key: str
    engine: str
    engine_key: str


class Seen(NamedTuple):
    """One thing that was asked for, and what came."""

    name: str
    expected: int
    status: int
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the result."""
        return dict(self._asdict())


class Proxy:
    """The proxy of this machine."""

    def __init__(self, sets: Sets, nginx: nginxes.Nginx, patience: float = 15.0) -> None:
        self.sets, self._run, self._nginx, self._patience = sets, nginx.run, nginx, patience

    # ---- what there is ---------------------------------------------------------------------------------------

    def steps(self, target: Target) -> list[str]:
        """What is missing for `target`, in the order in which it is done."""
        found = []
        if not self.sets.whole(target.want):
            found.append("write")
        if self.sets.current() != target.want.name:
            found.append("switch")
        with_unit = self._nginx.started_with()
        if with_unit is None:
            found.append("start")
        elif with_unit != target.unit:
            found.append("restart")
        elif found or not self._shows(target):
            found.append("reload")
        if not self._nginx.enabled():
            found.append("enable")
        return found

    def _shows(self, target: Target) -> bool:
        """Whether what runs is this set, with the certificate as it is in its file now."""
        if probes.running_set(self._run) != target.want.name:
            return False
        return not target.certificate or target.door.certificate() == target.certificate

    def asked(self, target: Target) -> list[Seen]:
        """What a client gets: refused without a key, refused what is not listed, served with the key."""
        wrong = target.key[:-1] + ("a" if target.key[-1:] != "a" else "b")
        wanted = [("with the key", "GET", FORBIDDEN, target.key, 404)]
        for path, method in target.routes[:1]:
            wanted += [("without a key", method, path, "", 401), ("with a wrong key", method, path, wrong, 401)]
        return [
            self._until(f"{method} {path} {how}", status, functools.partial(target.door.ask, method, path, key))
            for how, method, path, key, status in wanted
        ]

    def served(self, target: Target) -> Seen:
        """Whether the engine answers through the proxy; one that does not is asked past it, and told by that."""
        if not target.models:
            return self._direct(target)
        return self._until(
            f"GET {MODELS} with the key",
            200,
            functools.partial(target.door.ask, "GET", MODELS, target.key),
            {0, 404, 401, 429},
        )

    def _until(
        self, name: str, expected: int, ask: Callable[[], probes.Answer], again: Iterable[int] | None = None
    ) -> Seen:
        """Ask until it is as expected: for a moment after a reload the former workers may answer."""
        deadline = time.monotonic() + self._patience
        while True:
            answer = ask()
            if answer.status == expected or time.monotonic() > deadline:
                return Seen(name, expected, answer.status, answer.why)
            if again is not None and answer.status not in again:
                return Seen(name, expected, answer.status, answer.why)
            time.sleep(0.1)

    # ---- what is done ----------------------------------------------------------------------------------------

    def bring(self, target: Target, secrets: Sequence[str]) -> None:
        """Have `target` run.

        Raises:
            ProxyError: it does not; what ran before runs again, where there was something.
        """
        former = self.sets.current() if self._nginx.started_with() else ""
        steps = self.steps(target)
        try:
            if "write" in steps:
                self.sets.write(target.want)
            if "write" in steps or "switch" in steps:
                self._nginx.test(f"{self.sets.path(target.want.name)}/{CONFIGURATION}")
        except (OSError, nginxes.NginxError) as error:
            self.sets.keep_only(self.sets.current())
            what = "nginx does not take the configuration; what was there before is as it was"
            raise ProxyError("proxy-config-refused", what, "", nginxes.without(secrets, str(error))) from None
        try:
            self._switch(target, steps)
            served = self.served(target)
            direct = served if served.status == served.expected else self._direct(target)
            if served.status != direct.status == served.expected:
                why = f"{served.name} gives {served.status}, the engine itself answers"
                raise ProxyError("proxy-broken", "the proxy does not reach the engine", target.engine, why)
        except (OSError, nginxes.NginxError, ProxyError) as error:
            self._back(former, target, secrets, error)
        self.sets.keep_only(target.want.name)
        if direct.status != direct.expected:
            raise ProxyError(
                "engine-silent",
                "the proxy is in place, and the engine behind it does not answer",
                target.engine,
                f"status {direct.status} {direct.why}".strip(),
                "see `journalctl -u rackwell-inference`, and bring it to serve",
            )

    @staticmethod
    def _direct(target: Target) -> Seen:
        answer = probes.ask_engine(target.engine, "GET", MODELS, target.engine_key)
        return Seen("the engine itself", 200, answer.status, answer.why)

    def _switch(self, target: Target, steps: Sequence[str]) -> None:
        self.sets.switch(target.want.name)
        self._nginx.do("daemon-reload")
        self._nginx.do(*(verb for verb in ("enable", "restart", "start", "reload") if verb in steps))
        self._prove(target)

    def _prove(self, target: Target) -> None:
        deadline = time.monotonic() + self._patience
        while not self._shows(target):
            if time.monotonic() > deadline:
                raise ProxyError("proxy-broken", "nginx runs on without the new configuration", self._run)
            time.sleep(0.05)
        for seen in self.asked(target):
            if seen.status != seen.expected:
                why = f"{seen.name} gives {seen.status}, expected {seen.expected} {seen.why}"
                raise ProxyError("proxy-broken", "the proxy does not do what it should", "", why.strip())

    def _back(self, former: str, target: Target, secrets: Sequence[str], error: Exception) -> NoReturn:
        """Return to what ran before, or to nothing, and tell which. Raises ProxyError, always."""
        parts = error.parts if isinstance(error, ProxyError) else {}
        what = parts.get("what", "nginx did not come up with the new configuration")
        why = parts.get("why") or ("" if parts else nginxes.without(secrets, str(error)))
        code, where = parts.get("code", "proxy-broken"), parts.get("where", "")
        if former == target.want.name:
            raise ProxyError(code, what, where, why, "see `journalctl -u nginx`") from None
        try:
            if former:
                self.sets.switch(former)
                self._nginx.do("reload" if self._nginx.started_with() else "restart")
                self._wait_for(former)
                told = "the former configuration is back and runs"
            else:
                self._nginx.do("stop")
                self.sets.drop_link()
                told = "nothing was there before, and nothing listens now"
            self.sets.keep_only(former)
        except (OSError, nginxes.NginxError, ProxyError) as second:
            why = f"{why}; the return failed as well: {nginxes.without(secrets, str(second))}"
            raise ProxyError(code, what, where, why, "see `journalctl -u nginx`") from None
        raise ProxyError(code, f"{what}; {told}", where, why, "", back=bool(former)) from None

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + self._patience
        while probes.running_set(self._run) != name:
            if time.monotonic() > deadline:
                raise ProxyError("proxy-broken", "nginx does not run with the former configuration")
            time.sleep(0.05)

    def remove(self) -> None:
        """Have no proxy. Raises NginxError or OSError."""
        # also one that is down: without the drop-in, Debian's own page would be there at the next start of the machine
        if self._nginx.installed() and self._nginx.started_with() != "":
            self._nginx.do("stop", "disable")
        self.sets.drop_link()
        self.sets.keep_only()
