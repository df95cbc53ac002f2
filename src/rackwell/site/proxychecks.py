# SPDX-License-Identifier: Apache-2.0
"""What must hold of a proxy in front of an engine, as far as this machine can tell."""

from __future__ import annotations

import re
import ssl
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rackwell.errors import Problem
from rackwell.site import files
from rackwell.site.inventory import is_template
from rackwell.site.node import Node
from rackwell.site.routerchecks import LOOPBACK, Served
from rackwell.site.variables import ProxyRoute
from rackwell.site.yamlsource import Pointer

STATE = "api_proxy_state"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{20,256}")
Add = Callable[[str, str, str, str, str, str], None]
"""Host, variable, code, what, why, fix."""


def declared(container: Node) -> bool:
    """Whether a container is declared to have a proxy."""
    return STATE in container.variables and container.value(STATE) == "present"


def listed(container: Node) -> list[ProxyRoute]:
    """The routes that its proxy lets through; none where they do not hold."""
    given = container.value("api_proxy_routes")
    return [route for route in given if isinstance(route, ProxyRoute)] if isinstance(given, list) else []


class ProxyChecks:
    """The problems of a site's proxies.

    Args:
        served: container -> what it serves, None where that does not hold by itself. where: host, variable and a place
            within it -> ``file:line``.
        raw: host -> variables as they are written. add: told of each problem.
    """

    def __init__(
        self,
        served: Callable[[str], Served | None],
        where: Callable[[str, str, Pointer], str],
        raw: Mapping[str, Mapping[str, Any]],
        add: Add,
        add_problem: Callable[[set[str], Problem], None],
    ) -> None:
        self._served, self._where, self._raw, self._add, self._add_problem = served, where, raw, add, add_problem

    def check(self, containers: Iterable[Node], routers: Mapping[str, Node]) -> None:
        """All of them."""
        for container in containers:
            given = [name for name in container.variables if name.startswith("api_proxy_")]
            if given and STATE not in self._raw.get(container.name, {}):
                what = f"{container.name} has {given[0]}, and no {STATE}"
                self._add(
                    container.name,
                    given[0],
                    "proxy-undeclared",
                    what,
                    "it would get no proxy",
                    f"add `{STATE}: present`",
                )
            elif declared(container):
                self._keys(container)
                self._certificate(container)
                self._routes(container)
                self._engine(container, routers)

    def _keys(self, node: Node) -> None:
        raw = self._raw.get(node.name, {})
        given, path = raw.get("api_proxy_keys"), node.text("api_proxy_keys_file")
        if not given and not raw.get("api_proxy_keys_file"):
            fix = "set api_proxy_keys_file, or api_proxy_keys from the vault"
            self._add(
                node.name, STATE, "missing-variable", f"the proxy of {node.name} has no keys", "nobody could ask", fix
            )
        if isinstance(given, dict):
            plain = {name: key for name, key in given.items() if type(key) is str and not is_template(key)}
            for name in plain:
                self._in_clear(node.name, str(name))
            self._are_keys(node.name, "api_proxy_keys", plain)
        if not path or not self._is_there(node, "api_proxy_keys_file", "the file of the API keys", secret=True):
            return
        found: dict[str, str] = {}
        try:
            text = files.place(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            what, why = "the file of the API keys cannot be read", error.strerror or str(error)
            self._add(node.name, "api_proxy_keys_file", "file-unreadable", what, why, "make it yours")
            return
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
        lines = [(number, parts) for number, parts in lines if parts and not parts[0].startswith("#")]
        for number, parts in lines:
            if len(parts) != 2 or parts[0] in found:
                why = f"{path}:{number}: a line is NAME KEY, each name once"
                self._add(
                    node.name, "api_proxy_keys_file", "api-key-invalid", "a line of the keys does not hold", why, ""
                )
            else:
                found[parts[0]] = parts[1]
        if not lines and not given:
            what, why = "the file of the API keys is empty", f"{path} has no line NAME KEY"
            fix = "make a key: openssl rand -hex 32"
            self._add(node.name, "api_proxy_keys_file", "api-key-invalid", what, why, fix)
        self._are_keys(node.name, "api_proxy_keys_file", found)

    def _are_keys(self, node: str, variable: str, keys: Mapping[Any, Any]) -> None:
        """What the keys are is nobody's business, also not in a message."""
        seen: dict[str, str] = {}
        for name, key in keys.items():
            fix = "make one: openssl rand -hex 32"
            if not isinstance(key, str) or not _TOKEN.fullmatch(key):
                why = "20 to 256 letters, digits and ._~+/=- are taken"
                self._add(node, variable, "api-key-invalid", f"the key of {name} cannot be one", why, fix)
            elif seen.setdefault(key.lower(), name) != name:
                what = f"{seen[key.lower()]} and {name} have the same key"
                self._add(node, variable, "api-key-invalid", what, "the case of letters does not tell keys apart", fix)

    def _in_clear(self, node: str, name: str) -> None:
        """A key in clear is in every copy of the site, and in its history."""
        where = self._where(node, "api_proxy_keys", (name,))
        path = Path(where.rpartition(":")[0])
        given = str(self._raw[node]["api_proxy_keys"][name])
        if files.is_file(path) and given in path.read_text(encoding="utf-8", errors="replace"):
            fix = f"make a new one, and: ansible-vault encrypt_string --stdin-name {name}; or use api_proxy_keys_file"
            problem = Problem("key-in-clear", f"the API key of {name} stands there in clear", where, "", fix)
            self._add_problem({node}, problem)

    def _certificate(self, node: Node) -> None:
        source = node.text("api_proxy_certificate_from")
        if source == "self-signed":
            return
        raw = self._raw.get(node.name, {})
        missing = [v for v in ("api_proxy_certificate", "api_proxy_certificate_key") if not raw.get(v)]
        if missing:
            fix = f"set {' and '.join(missing)}; or api_proxy_certificate_from: self-signed, which no client trusts"
            what = f"the proxy of {node.name} has no certificate"
            self._add(node.name, STATE, "missing-variable", what, "it speaks TLS only", fix)
            return
        if source != "controller":
            return
        there = self._is_there(node, "api_proxy_certificate", "the certificate")
        if (
            not self._is_there(node, "api_proxy_certificate_key", "the key of the certificate", secret=True)
            or not there
        ):
            return
        certificate = files.place(node.text("api_proxy_certificate") or "")
        if wrong := pair_problem(certificate, files.place(node.text("api_proxy_certificate_key") or "")):
            code, what, fix = wrong
            self._add(node.name, "api_proxy_certificate", code, what, str(certificate), fix)

    def _is_there(self, node: Node, variable: str, label: str, *, secret: bool = False) -> bool:
        """Whether a file of this machine can be used; false also when only Ansible knows its path."""
        text = node.text(variable)
        if not text:
            return False
        path = files.place(text)
        if not path.is_absolute():
            fix = f'write "{{{{ inventory_dir }}}}/{text}"'
            self._add(node.name, variable, "path-relative", f"{label} needs a whole path", text, fix)
            return False
        if not files.is_file(path):
            self._add(
                node.name,
                variable,
                "file-missing",
                f"{label} does not exist",
                text,
                "correct the path, or bring the file",
            )
            return False
        mode = stat.S_IMODE(path.stat().st_mode)
        if secret and mode & 0o077:
            self._add(
                node.name, variable, "secret-readable", f"{label} can be read by others",
                f"{text} has the mode {mode:04o}", f"chmod 0600 {text}",
            )  # fmt: skip
            return False
        return True

    def _routes(self, node: Node) -> None:
        paths = [route.path for route in listed(node)]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            fix = "list its methods in one entry"
            self._add(node.name, "api_proxy_routes", "duplicate-route", f"the proxy lists {path} twice", "", fix)

    def _engine(self, node: Node, routers: Mapping[str, Node]) -> None:
        served = self._served(node.name)
        if served is None:
            return
        server = served.profile.server
        if server.host not in LOOPBACK:
            self._add_problem(
                {node.name},
                Problem(
                    "engine-exposed",
                    f"the engine of {node.name} listens on {server.host}, past its proxy",
                    served.document.where(("server", "host")),
                    "whoever reaches that port needs no key and may ask every route",
                    "take `host` out of the profile: the loopback is its default",
                ),
            )
        taken = {server.port: "the engine"}
        if router := routers.get(node.name):
            taken |= {router.value("router_port"): "the router", router.value("router_metrics_port"): "the router"}
        if other := taken.get(node.value("api_proxy_port")):
            what = f"port {node.value('api_proxy_port')} of {node.name} is wanted by its proxy and by {other}"
            self._add(node.name, "api_proxy_port", "port-taken", what, "", "set another api_proxy_port")


def pair_problem(certificate: Path, key: Path) -> tuple[str, str, str] | None:
    """What keeps a certificate and its key from being used: code, what and fix; None when nothing does."""

    def password() -> str:
        raise PermissionError

    try:
        # Python has no other way to read a certificate's dates
        told = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
        ends = ssl.cert_time_to_seconds(told["notAfter"])
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password)
    except PermissionError:
        return "key-encrypted", "the key of the certificate has a passphrase, or cannot be read", "store it without one"
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            return "certificate-mismatch", f"{key} is not the key of the certificate", "give the key that belongs to it"
        return "certificate-unreadable", "certificate or key is no PEM file", "bring them in PEM form"
    except (OSError, ValueError, KeyError):
        return "certificate-unreadable", "certificate or key cannot be read", "bring them in PEM form"
    if ends <= time.time():
        when = time.strftime("%Y-%m-%d", time.gmtime(ends))
        return "certificate-expired", f"the certificate has ended on {when}", "bring a new one"
    return None
