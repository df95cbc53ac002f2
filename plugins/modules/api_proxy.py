#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The proxy in front of the engine: its files, its switch, its proof."""

from __future__ import annotations

DOCUMENTATION = r"""
module: api_proxy
short_description: Have nginx in front of the engine, and return to what ran before when it does not hold
version_added: 0.3.0
description:
  - Keeps the configuration, the keys and the certificate of the proxy as a set of files of root alone, named by its
    content. A new set is tried with nginx itself before it becomes the live one, and nginx is reloaded, so that streams
    that are under way go on.
  - Then the proxy is asked like a client asks it. A route without a key must be refused, so must one that is not
    listed, and the engine must answer with a key. When that does not hold, the former set is live again.
options:
  state:
    description:
      - V(present) brings the proxy there.
      - V(absent) stops it and removes its files; the package stays.
      - V(checked) only asks, and fails when the proxy is not as declared.
    type: str
    choices: [present, absent, checked]
    default: present
  configuration:
    description: The configuration of nginx. C(@SET@) in it becomes the name of the set.
    type: str
    default: ""
  keys:
    description: Key of each client by the client's name.
    type: dict
    default: {}
  keys_file:
    description: File on the controller, mode 0600, with lines C(NAME KEY), beside O(keys).
    type: str
    default: ""
  engine:
    description: Where the engine listens, as C(HOST:PORT).
    type: str
    default: ""
  engine_key:
    description: Key that the engine itself asks for; empty for none.
    type: str
    default: ""
  address:
    description: Address that the proxy listens on.
    type: str
    default: 0.0.0.0
  port:
    description: Port that it listens on.
    type: int
    default: 443
  names:
    description: Names and addresses that clients reach it by; the certificate must be for all of them.
    type: list
    elements: str
    default: []
  certificate_from:
    description: Where certificate and key are. V(self-signed) makes them.
    type: str
    choices: [controller, container, self-signed]
    default: controller
  certificate:
    description: File of the certificate, with those that lead to its authority after it.
    type: str
    default: ""
  certificate_key:
    description: File of its key, which nobody else can read.
    type: str
    default: ""
  certificate_days:
    description: A self-signed certificate that ends within so many days is made anew.
    type: int
    default: 21
  certificate_text:
    description: Content of O(certificate); set by the action plugin.
    type: str
    default: ""
  certificate_key_text:
    description: Content of O(certificate_key); set by the action plugin.
    type: str
    default: ""
  routes:
    description: Routes that are let through, each with C(path), C(methods) and C(key), whether it needs one.
    type: list
    elements: dict
    default: []
  unit:
    description: Digest of the drop-in of C(nginx.service). The unit writes it to a file in O(run) when it starts.
    type: str
    default: ""
  drop_in:
    description: The drop-in; O(state=absent) removes it.
    type: path
    default: /etc/systemd/system/nginx.service.d/rackwell-api-proxy.conf
  drop_in_digest:
    description: SHA-256 of the drop-in as it is to be; O(state=checked) compares it. Empty for any.
    type: str
    default: ""
  root:
    description: Directory of the sets.
    type: path
    default: /etc/rackwell/api-proxy
  run:
    description: Directory of the socket that tells which set runs.
    type: path
    default: /run/rackwell-api-proxy
  cache:
    description: Directory of what nginx keeps for the time of a request; O(state=absent) removes it.
    type: path
    default: /var/cache/rackwell-api-proxy
attributes:
  check_mode:
    support: full
    description: Tells what would be done. nginx is not asked whether it takes the configuration.
  diff_mode:
    support: full
    description: The configuration, and of the keys the names.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Take the proxy away
  rackwell.gpu.api_proxy:
    state: absent
"""

RETURN = r"""
rackwell_result:
  description:
    - Schema C(rackwell.api_proxy/1). C(set) is what is declared, C(running) what nginx runs with, C(steps) what was
      done, or would be. C(engine_listens) has the addresses that the engine's port listens on.
    - C(asked) has what a client got, C(certificate) its names, its end and the days that are left, and C(clients) the
      names of those that have a key.
  returned: always
  type: dict
rackwell_error:
  description: What is wrong, and what mends it.
  returned: failure
  type: dict
rolled_back:
  description: Whether what ran before runs again.
  returned: failure
  type: bool
rollback_verified:
  description: Whether nginx itself told that it does.
  returned: failure
  type: bool
"""

import hashlib
import ipaddress
import os
import shutil
import time
from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_keys, proxy_probe, proxy_set
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_ports import listeners
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_certificate import (
    Certificate,
    CertificateError,
    from_text,
    judge,
    private,
    read,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_nginx import Nginx, NginxError
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_run import Proxy, ProxyError, Seen, Target
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_self_signed import SelfSigned

SCHEMA = "rackwell.api_proxy/1"
# what is wrong, where something is still to be done
_WORDS = {
    "certificate": "its certificate ends soon, or is for other names",
    "drop-in": "the drop-in of nginx.service is not rackwell's",
    "write": "its files were changed, or others can read them",
    "switch": "another set of files is live",
    "start": "nginx does not run",
    "restart": "nginx was started with another unit",
    "reload": "nginx runs with another configuration or certificate",
    "enable": "nginx does not start with the machine",
}


class Run:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.p: dict[str, Any] = module.params
        self.sets = proxy_set.Sets(self.p["root"])
        self.nginx = Nginx(self.p["run"], self.p["cache"])
        self.proxy = Proxy(self.sets, self.nginx)
        self.own = SelfSigned(os.path.join(self.p["root"], "self-signed"))
        self.result: dict[str, Any] = {"schema": SCHEMA, "state": self.p["state"], "steps": [], "asked": []}

    # ---- what is declared --------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        # without a name of its own, that of the loopback: what is self-signed has to be for something
        return list(self.p["names"]) or ["localhost"]

    def _certificate(self) -> Optional[Certificate]:
        """The declared certificate; None when a self-signed one is yet to be made. Raises CertificateError."""
        source, now = self.p["certificate_from"], time.time()
        if source == "self-signed":
            if not self.own.fits(self._names(), self.p["certificate_days"], now):
                return None
            return read(self.own.certificate, self.own.key)
        if source == "container":
            for path in (self.p["certificate"], self.p["certificate_key"]):
                if not path.startswith("/"):
                    raise CertificateError("certificate-path", "certificate and key need absolute paths", path)
            private(self.p["certificate_key"], "the key of the certificate")
            found: Certificate = read(self.p["certificate"], self.p["certificate_key"])
        else:
            found = from_text(self.p["certificate_text"], self.p["certificate_key_text"])
        judge(found, self.p["certificate"], self.p["names"], now)
        return found

    def _target(self, certificate: Optional[Certificate]) -> Target:
        files = {
            proxy_set.CONFIGURATION: self.p["configuration"],
            proxy_set.KEYS: proxy_keys.render(self.p["keys"], self.p["engine_key"]),
        }
        if self.p["certificate_from"] == "controller":
            files[proxy_set.CERTIFICATE] = self.p["certificate_text"]
            files[proxy_set.KEY] = self.p["certificate_key_text"]
        elif self.p["certificate_from"] == "self-signed" and certificate is not None:
            for name, path in ((proxy_set.CERTIFICATE, self.own.certificate), (proxy_set.KEY, self.own.key)):
                with open(path, encoding="utf-8") as stream:
                    files[name] = stream.read()
        keyed = [route for route in self.p["routes"] if route.get("key", True)]
        return Target(
            want=proxy_set.wanted(files),
            unit=self.p["unit"],
            door=proxy_probe.Door(self.p["address"], self.p["port"]),
            certificate=certificate.der if certificate is not None else b"",
            routes=[(route["path"], route["methods"][0]) for route in keyed],
            models=any(route["path"] == "/v1/models" and "GET" in route["methods"] for route in self.p["routes"]),
            key=next(iter(self.p["keys"].values())),
            engine=self.p["engine"],
            engine_key=self.p["engine_key"],
        )

    # ---- what is done ------------------------------------------------------------------------------------------

    def present(self) -> None:
        """Bring it there, or tell what is missing."""
        proxy_keys.check(self.p["keys"])
        proxy_keys.check_engine(self.p["engine_key"])
        self._alone()
        certificate = self._certificate()
        steps = [] if certificate is not None else ["certificate"]
        if certificate is None and not self.module.check_mode:
            self.own.make(self._names())
            certificate = read(self.own.certificate, self.own.key)
        target = self._target(certificate)
        steps += self.proxy.steps(target)
        self._tell(target, certificate, steps)
        diff = self._diff(target)
        if self.module.check_mode or not steps:
            if not self.module.check_mode:
                self._hidden()
            done(self.module, bool(steps), self.result, diff=diff)
        self.proxy.bring(target, [*self.p["keys"].values(), self.p["engine_key"]])
        self._tell(target, certificate, steps)
        self._hidden()
        done(self.module, True, self.result, diff=diff)

    def checked(self) -> None:
        """Ask, and change nothing."""
        proxy_keys.check(self.p["keys"])
        self._alone()
        self._hidden()
        certificate = self._certificate()
        target = self._target(certificate)
        steps = (["certificate"] if certificate is None else []) + (["drop-in"] if self._other_drop_in() else [])
        steps += self.proxy.steps(target)
        self._tell(target, certificate, steps)
        if self.result["running"]:
            seen: list[Seen] = [*self.proxy.asked(target), self.proxy.served(target)]
            self.result["asked"] = [one.as_dict() for one in seen]
            for one in seen:
                if one.status != one.expected:
                    why = ("it gives %d, expected %d %s" % (one.status, one.expected, one.why)).strip()
                    raise ProxyError("proxy-wrong-answer", "the proxy does not do what it should: " + one.name, "", why)
        if steps:
            what = "the proxy is not as declared"
            why = "; ".join(_WORDS[step] for step in steps)
            raise ProxyError("proxy-differs", what, self.p["root"], why, "rackwell provision brings it there")
        done(self.module, False, self.result)

    def absent(self) -> None:
        """Have no proxy, and nothing of it but the package."""
        there = [path for path in (self.p["root"], self.p["drop_in"], self.p["cache"]) if os.path.lexists(path)]
        runs = bool(self.nginx.started_with())
        changed = bool(there) or runs
        if changed and not self.module.check_mode:
            self.proxy.remove()
            for path in there:
                if os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            self.nginx.do("daemon-reload")
        self.result["steps"] = (["stop"] if runs else []) + ["remove " + path for path in there]
        done(self.module, changed, self.result)

    def _alone(self) -> None:
        """Debian's unit serves the proxy and nothing else: what it serves must not end, or never begin, by surprise."""
        others = self.nginx.other_sites()
        if others:
            fail(
                self.module,
                "nginx-in-use",
                "nginx is to serve something else in this container",
                others[0],
                "the proxy has nginx.service for itself",
                "serve that elsewhere, and remove it here: " + " ".join(others),
            )

    def _hidden(self) -> None:
        """Whoever reaches the engine itself needs no key: its port must be the loopback's alone."""
        port = int(self.p["engine"].rpartition(":")[2])
        found = sorted({one.address for one in listeners() if one.port == port})
        self.result["engine_listens"] = found
        for address in found:
            if not ipaddress.ip_address(address).is_loopback:
                raise ProxyError(
                    "engine-exposed",
                    "the engine listens on %s, past the proxy" % address,
                    "port %d" % port,
                    "whoever reaches that port needs no key and may ask every route",
                    "see who it is: ss -ltnp 'sport = %d'; systemctl cat rackwell-inference; then rackwell provision"
                    % port,
                )

    def _other_drop_in(self) -> bool:
        """Whether at its next start nginx would be something else than the proxy."""
        if not self.p["drop_in_digest"]:
            return False
        try:
            with open(self.p["drop_in"], "rb") as stream:
                found = hashlib.sha256(stream.read()).hexdigest()
        except OSError:
            return True
        return bool(found != self.p["drop_in_digest"])

    def _tell(self, target: Target, certificate: Optional[Certificate], steps: list[str]) -> None:
        self.result.update(
            set=target.want.name,
            running=proxy_probe.running_set(self.p["run"]),
            steps=steps,
            address=self.p["address"],
            port=self.p["port"],
            clients=sorted(self.p["keys"]),
            certificate=None
            if certificate is None
            else {
                "from": self.p["certificate_from"],
                "names": list(certificate.names),
                "ends": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(certificate.ends)),
                "days_left": certificate.days_left(time.time()),
                "warn_days": self.p["certificate_days"],
            },
        )

    def _diff(self, target: Target) -> dict[str, str]:
        live = self.sets.current()
        before = self.sets.read(live, proxy_set.CONFIGURATION) if live else ""
        keys = proxy_set.keys_in(self.sets.read(live, proxy_set.KEYS)) if live else {}
        lowered = {name: key.lower() for name, key in self.p["keys"].items()}
        told = "".join("# %s\n" % line for line in proxy_keys.changes(keys, lowered))
        after = target.want.files[proxy_set.CONFIGURATION]
        return {"before": before, "after": after + told, "before_header": live, "after_header": target.want.name}

    def run(self) -> None:
        """The whole of it."""
        try:
            getattr(self, self.p["state"])()
        except proxy_keys.ApiKeyError as error:
            where = "api_proxy_keys"
            fail(self.module, "api-key-invalid", str(error), where, "", error.fix, rackwell_result=self.result)
        except CertificateError as error:
            fail(self.module, **error.parts, rackwell_result=self.result)
        except ProxyError as error:
            back = {"rolled_back": error.rolled_back, "rollback_verified": error.rolled_back}
            fail(self.module, **error.parts, **back, rackwell_result=self.result)
        except (NginxError, OSError) as error:
            fail(self.module, "proxy-failed", "the proxy could not be brought there", "", str(error))


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "checked"], "default": "present"},
            "configuration": {"type": "str", "default": ""},
            "keys": {"type": "dict", "default": {}, "no_log": True},
            "keys_file": {"type": "str", "default": "", "no_log": False},
            "engine": {"type": "str", "default": ""},
            "engine_key": {"type": "str", "default": "", "no_log": True},
            "address": {"type": "str", "default": "0.0.0.0"},  # noqa: S104 - what is asked for by default
            "port": {"type": "int", "default": 443},
            "names": {"type": "list", "elements": "str", "default": []},
            "certificate_from": {
                "type": "str",
                "choices": ["controller", "container", "self-signed"],
                "default": "controller",
            },
            "certificate": {"type": "str", "default": ""},
            "certificate_key": {"type": "str", "default": "", "no_log": False},
            "certificate_days": {"type": "int", "default": 21},
            "certificate_text": {"type": "str", "default": ""},
            "certificate_key_text": {"type": "str", "default": "", "no_log": True},
            "routes": {"type": "list", "elements": "dict", "default": []},
            "unit": {"type": "str", "default": ""},
            "drop_in": {"type": "path", "default": "/etc/systemd/system/nginx.service.d/rackwell-api-proxy.conf"},
            "drop_in_digest": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/etc/rackwell/api-proxy"},
            "run": {"type": "path", "default": "/run/rackwell-api-proxy"},
            "cache": {"type": "path", "default": "/var/cache/rackwell-api-proxy"},
        },
        supports_check_mode=True,
    )
    # all of it is of root alone, whatever the session's umask is
    os.umask(0o077)
    Run(module).run()


if __name__ == "__main__":
    main()
