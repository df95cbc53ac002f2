# SPDX-License-Identifier: Apache-2.0
"""The proxy goes along when a roll has the server listen elsewhere, or ask for another key.

Nothing is rendered here: of the set of files that is live, the engine's address and key are replaced. What comes out is
the very set that a provision with the new profile makes, and a return makes the former one anew.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_keys
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_preflight import Lack
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_nginx import Nginx, NginxError, without
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_probe import running_set
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_set import (
    CONFIGURATION,
    KEYS,
    MARK,
    Sets,
    Wanted,
    wanted,
)

#: where role api_proxy has it
ROOT, RUN, CACHE = "/etc/rackwell/api-proxy", "/run/rackwell-api-proxy", "/var/cache/rackwell-api-proxy"
_ADDRESS = re.compile(r"^(    upstream rackwell_engine \{\n        server )([^\s;]+)(;)$", re.MULTILINE)
_KEY = re.compile(r'^(map "" \$api_engine_authorization \{\n    default ")([^"\n]*)(";)$', re.MULTILINE)


class FollowError(Exception):
    """The proxy does not ask where the server listens now; the text says why, and holds no key."""


class _Plan(NamedTuple):
    live: str
    want: Wanted


class Follower:
    """The proxy of this machine, as far as it has to know where the server is; there may be none."""

    def __init__(self, sets: Sets, nginx: Nginx, patience: float = 15.0) -> None:
        self._sets, self._nginx, self._patience = sets, nginx, patience

    @classmethod
    def here(cls) -> Follower:
        """The one that role api_proxy makes."""
        return cls(Sets(ROOT), Nginx(RUN, CACHE))

    def _plan(self, host: str, port: int, key: str) -> _Plan | None:
        """The set for that server; None where there is no proxy. Raises FollowError."""
        live = self._sets.current()
        if not live:
            return None
        try:
            proxy_keys.check_engine(key)
            files = {name: self._sets.read(live, name) for name in os.listdir(self._sets.path(live))}
        except (proxy_keys.ApiKeyError, OSError) as error:
            raise FollowError(str(error)) from None
        where = f"[{host}]" if ":" in host and not host.startswith("[") else host
        authorization = f"Bearer {key}" if key else ""
        for name, pattern, value in ((CONFIGURATION, _ADDRESS, f"{where}:{port}"), (KEYS, _KEY, authorization)):
            text = files.get(name, "")
            places = list(pattern.finditer(text))
            if len(places) != 1:
                raise FollowError(f"{self._sets.path(live)}/{name} is not as rackwell wrote it")
            start, end = places[0].span(2)
            files[name] = text[:start] + value + text[end:]
        files[CONFIGURATION] = files[CONFIGURATION].replace(live, MARK)
        return _Plan(live, wanted(files))

    def lacking(self, host: str, port: int, key: str) -> list[Lack]:
        """What would keep it from following. Touches nothing."""
        try:
            self._plan(host, port, key)
        except FollowError as error:
            what = "the proxy before the server cannot go along with this switch"
            fix = "rackwell provision writes it anew; then roll again"
            return [Lack("proxy-differs", what, ROOT, str(error), fix)]
        return []

    def follow(self, host: str, port: int, key: str) -> bool:
        """Have it ask that server, with that key; one that is down is left down.

        Returns:
            Whether anything was to be done.

        Raises:
            FollowError: it does not, and asks where it did before.
        """
        plan = self._plan(host, port, key)
        if plan is None:
            return False
        live, want = plan
        try:
            if want.name != live:
                self._sets.write(want)
                if self._nginx.installed():
                    self._nginx.test(os.path.join(self._sets.path(want.name), CONFIGURATION))
                self._sets.switch(want.name)
            elif not self._behind(want.name):
                return False
            if self._behind(want.name):
                self._nginx.do("reload")
                self._wait(want.name)
        except (OSError, NginxError) as error:
            self._take_back(live)
            raise FollowError(without([key], str(error))) from None
        self._sets.keep_only(want.name)
        return True

    def _behind(self, name: str) -> bool:
        """Whether nginx runs as the proxy, with another set."""
        return bool(self._nginx.started_with()) and running_set(self._nginx.run) != name

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + self._patience
        while running_set(self._nginx.run) != name:
            if time.monotonic() > deadline:
                raise NginxError("nginx runs on with the former configuration")
            time.sleep(0.05)

    def _take_back(self, live: str) -> None:
        try:
            self._sets.switch(live)
            self._sets.keep_only(live)
            if self._behind(live):
                self._nginx.do("reload")
        except (OSError, NginxError):
            # the reason is told already, and the return makes it anew
            return
