# SPDX-License-Identifier: Apache-2.0
"""The proxy in front of the server, where one is declared."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite.asking import output, python, show
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
LIVE = "/etc/rackwell/api-proxy/live"
#: of an engine's own routes; none of them is for clients
CLOSED = ("/flush_cache", "/server_info", "/get_server_info", "/update_weights_from_disk", "/start_profile", "/metrics")
_ASK = """
import http.client, json, re, ssl, sys
host, port, asked, live = json.loads(sys.argv[1])
key = ""
with open(live + "/keys.conf") as stream:
    # a key of the file that nginx reads; it stays in this process
    found = re.search(r'\\(\\?i:bearer\\) (\\S+)\\$"', stream.read())
    if found:
        key = re.sub(r"\\\\\\\\(.)", r"\\\\1", found[1])
answers = []
for path, which in asked:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {}
    if which == "right":
        headers["Authorization"] = "Bearer " + key
    elif which == "wrong":
        headers["Authorization"] = "Bearer " + "0" * 64
    try:
        connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
        connection.request("GET", path, headers=headers)
        answers.append(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        answers.append(str(error) or type(error).__name__)
print(json.dumps([bool(key), answers]))
"""


@pytest.fixture
def proxy(want: Want) -> dict[str, Any]:
    if not want["proxy"]:
        pytest.skip("api_proxy_state is not present")
    declared: dict[str, Any] = want["proxy"]
    return declared


def _ask(lxc: Host, proxy: dict[str, Any], *asked: tuple[str, str]) -> tuple[bool, list[Any]]:
    address = proxy["address"]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - read, not bound
    known, answers = python(lxc, _ASK, address, proxy["port"], list(asked), LIVE, seconds=180)
    return bool(known), list(answers)


def test_active(proxy: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """nginx is active, enabled, and listens on the declared port."""
    unit = show(lxc, "nginx.service", "ActiveState", "UnitFileState")
    found = f"{unit['ActiveState']}, {unit['UnitFileState']}"
    claim(found == "active, enabled", expected="active, enabled", found=found, fix=want["commands"]["provision"])
    told = output(lxc, "ss -H -l -t -n sport = :%s", str(proxy["port"]))
    listens = [line.split()[3] for line in told.splitlines()]
    good = any(one.rpartition(":")[0].strip("[]") in {proxy["address"], "*"} for one in listens)
    fix = want["commands"]["provision"]
    claim(good, expected=f"{proxy['address']}:{proxy['port']}", found=listens or "nothing listens there", fix=fix)


def test_key(proxy: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """A right key is answered; a wrong one, and none, get 401."""
    paths = [route["path"] for route in proxy["routes"] if "GET" in route["methods"] and route["key"]]
    if not paths:
        pytest.skip("no route for GET needs a key")
    path = paths[0]
    known, answers = _ask(lxc, proxy, (path, "right"), (path, "wrong"), (path, "none"))
    fix = want["commands"]["provision"]
    claim(known, expected="a key in its file", found="a key" if known else "none", fix=fix)
    claim(answers == [200, 401, 401], expected=f"200, 401, 401 for {path}", found=answers, fix=fix)


def test_closed_routes(proxy: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """The engine's own routes are not there for clients, not even with a key."""
    open_ = {route["path"] for route in proxy["routes"]}
    asked = [path for path in CLOSED if path not in open_]
    _, answers = _ask(lxc, proxy, *((path, "right") for path in asked))
    wrong = [f"{path} {status}" for path, status in zip(asked, answers, strict=True) if status != 404]
    fix = f"{want['commands']['provision']}; if it stays, report it: the allow-list leaks"
    claim(not wrong, expected="404 for each", found=wrong or f"404 for {len(asked)} of them", fix=fix)


def test_certificate(proxy: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """The certificate holds for another day at least."""
    path = f"{LIVE}/certificate.pem"
    told = output(
        lxc, "openssl x509 -noout -enddate -in %s; openssl x509 -noout -checkend 86400 -in %s || true", path, path
    )
    good = "will not expire" in told
    fix = f"bring a new certificate (docs/api-proxy.md), then {want['commands']['provision']}"
    claim(good, expected="valid for a day", found=told.splitlines()[0], fix=fix)
