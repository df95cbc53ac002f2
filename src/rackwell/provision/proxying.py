# SPDX-License-Identifier: Apache-2.0
"""What a proxy lets through, held against the routes that its engine has by its source."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from rackwell.build.routes import Inventories, Inventory, read_archive
from rackwell.lint import Finding
from rackwell.site import files
from rackwell.site.node import Node
from rackwell.site.proxychecks import declared, listed

if TYPE_CHECKING:
    from rackwell.build import BuildSpec
    from rackwell.provision.linting import Lint
    from rackwell.site.declaration import Site

#: they tell every setting of the engine, its keys among them
TELLING = ("/server_info", "/get_server_info")
_MOST = 12


class Proxies:
    """Checks the proxies of one site; each list of routes with each engine once."""

    def __init__(self, site: Site, lint: Lint, inventories: Inventories) -> None:
        self._site, self._lint, self._known = site, lint, inventories
        self.findings: list[Finding] = []

    def check(self, container: Node, build: Callable[[], BuildSpec]) -> None:
        """Hold the list of `container` against its engine. `build` raises RackwellError where it does not hold."""
        routes = listed(container)
        if not declared(container) or not routes:
            return
        where = self._site.sources.find(container.name, "api_proxy_routes", self._site.inventory)
        asked = [(route.path, method) for route in routes for method in route.methods]
        found = self._dangerous(asked, where)
        version, inventory = self.inventory(build())
        found += self._missing(asked, version, inventory, where)
        if inventory is not None:
            found += self._new(inventory, where)
        self.findings += [finding for finding in found if finding not in self.findings]

    def inventory(self, spec: BuildSpec) -> tuple[str, Inventory | None]:
        """Version of the engine in a build, and its routes; None where its wheel is neither known nor fetched."""
        version, wheel, path = self._lint.engine(spec)
        shipped = self._known.get(version) if version else None
        source = spec.sources.get("sglang")
        if shipped is not None and (source is None or source.git is None):
            return version, shipped
        if wheel is None or path is None:
            return version, None
        kept = self._site.state / "routes" / f"{wheel.sha256}.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return version, Inventory.from_text(kept.read_text(encoding="utf-8"))
        try:
            inventory = read_archive(path, version, wheel.filename, wheel.sha256)
        except (OSError, ValueError, zipfile.BadZipFile):
            return version, None
        with contextlib.suppress(OSError):
            files.write(kept, inventory.as_text())
        return version, inventory

    def _dangerous(self, asked: Sequence[tuple[str, str]], where: str) -> list[Finding]:
        found = []
        for path in dict.fromkeys(path for path, _ in asked):
            admin = next((level for known in self._known.all() if (level := known.admin(path))), "")
            if admin or path in TELLING:
                why = "it tells every setting of the engine, its keys among them"
                if admin:
                    why = (
                        f"by its source it is administration ({admin}): such stop the engine, load code, change weights"
                    )
                what = f"the proxy would let {path} through"
                fix = "take it out; from the container itself it can be asked"
                found.append(Finding("proxy-route-dangerous", "error", what, where, why, fix, (where,)))
        return found

    def _missing(
        self, asked: Sequence[tuple[str, str]], version: str, inventory: Inventory | None, where: str
    ) -> list[Finding]:
        """An engine whose routes are not known is judged by the releases around it."""
        against = [inventory] if inventory is not None else self._around(version)
        found = []
        for path, method in asked:
            lacking = [one for one in against if not one.answers(path, method)]
            if not lacking or len(lacking) < len(against):
                continue
            has = lacking[0].methods(path)
            why = (
                f"SGLang {lacking[0].version} has {path} with {', '.join(has)}" if has else f"no route of it is {path}"
            )
            what = f"the proxy lists {method} {path}, which SGLang {version or lacking[0].version} does not have"
            severity = "error" if inventory is not None else "warning"
            found.append(
                Finding("proxy-route-missing", severity, what, where, why, "correct or remove it", (where,))  # type: ignore[arg-type]
            )
        if inventory is None:
            what = f"the routes of SGLang {version or 'in this build'} are not known yet"
            why = f"known: {', '.join(self._known.versions())}; a fetched wheel is read"
            fix = "rackwell build fetches it; then check again"
            found.append(Finding("proxy-routes-unknown", "note", what, where, why, fix, (where,)))
        return found

    def _around(self, version: str) -> list[Inventory]:
        """The known releases next to `version`, the one before and the one after."""
        known = self._known.all()
        try:
            before = [one for one in known if Version(one.version) <= Version(version)]
            after = [one for one in known if Version(one.version) > Version(version)]
        except InvalidVersion:
            return known
        return before[-1:] + after[:1]

    def _new(self, inventory: Inventory, where: str) -> list[Finding]:
        """Routes that no known release up to this one has; none for a release that is known itself."""
        around = self._around(inventory.version)
        if not around or inventory.version in self._known.versions():
            return []
        last = around[0]
        new = [route for route in inventory.beyond(last) if not any(one.methods(route.path) for one in around[1:])]
        if not new:
            return []
        told = ", ".join(f"{'/'.join(route.methods)} {route.path}" for route in new[:_MOST])
        more = f" and {len(new) - _MOST} more" if len(new) > _MOST else ""
        what = f"SGLang {inventory.version} has {len(new)} routes that {last.version} does not have: {told}{more}"
        why = "the proxy answers them with 404, as all that its list does not have"
        return [Finding("proxy-routes-new", "note", what, where, why, "nothing, unless clients need one", (where,))]
