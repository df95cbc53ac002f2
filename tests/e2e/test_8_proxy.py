# SPDX-License-Identifier: Apache-2.0
"""The proxy under systemd in a container, Debian's nginx, asked from the network outside of it."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rackwell import shipped
from rackwell.build.routes import Inventories

from .conftest import Ended, inside, more, rackwell
from .proxy_outside import SERVER, Outside, Recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
import api_proxy_fuzz
from api_proxy_place import ALICE, BOB, LISTED, eventually, request, status_of

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
LIVE = "/etc/rackwell/api-proxy/live"
SITE_VARIABLES = {
    "api_proxy_state": "present",
    "api_proxy_certificate_from": "self-signed",
    "api_proxy_keys_file": "{{ inventory_dir }}/api-keys",
    # what the tests ask is not to be refused for its number
    "api_proxy_rate": 100000,
    "api_proxy_rate_address": 100000,
}


def change(path: Path, keys: dict[str, Any]) -> None:
    document = yaml.safe_load(path.read_text()) or {}
    path.write_text(yaml.safe_dump(document | keys))


@pytest.fixture(scope="module")
def copy(site: Path, container: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laboratory's site with a proxy before the server."""
    place = tmp_path_factory.mktemp("proxy") / "site"
    shutil.copytree(site, place, symlinks=True, ignore=shutil.ignore_patterns(".rackwell"))
    for name in (".rackwell", "known_hosts"):
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(site / name)
    change(place / "host_vars" / f"{container}.yml", SITE_VARIABLES)
    (place / "api-keys").touch(0o600)
    (place / "api-keys").write_text(f"alice {ALICE}\nbob {BOB}\n")
    return place


#: role and task of each change: foretold, and then made
Steps = tuple[list[tuple[str, str]], list[tuple[str, str]]]


def names(ended: Ended) -> list[tuple[str, str]]:
    return [(one["role"], one["task"]) for one in ended.result["changes"]]


def serves(container: str) -> bool:
    with contextlib.suppress(AssertionError):
        return inside(container, f"systemctl is-active {SERVER} || true") == "active"
    # there is no such container yet
    return False


@pytest.fixture(scope="module")
def steps(site: Path, copy: Path, container: str) -> Iterator[Steps]:
    """What check mode says of a container that serves and has no proxy, and what the provision then changes."""
    gone = "api_proxy_state=absent"
    foretold: list[tuple[str, str]] = []
    # one provision from nothing is all that CI has time for
    if os.environ.get("RACKWELL_E2E") == "full":
        if not serves(container):
            bare = rackwell("provision", container, "-i", site, "--no-bench")
            assert bare.code == 0, bare.json["problems"]
        assert play(copy, container, "main", gone) == ""
        asked = rackwell("provision", container, "-i", copy, "--no-bench", "--check")
        assert asked.code == 0, asked.json["problems"]
        foretold = names(asked)
    told = rackwell("provision", container, "-i", copy, "--no-bench")
    assert told.code == 0, told.json["problems"]
    yield (foretold, names(told))
    assert play(copy, container, "main", gone) == ""
    assert "absent" in inside(container, "test -e /etc/rackwell/api-proxy || echo absent")
    assert not inside(container, "ss -Hltn 'sport = 443'")


@pytest.fixture(scope="module")
def outside(steps: Steps, site: Path, container: str) -> Outside:
    del steps
    declared = yaml.safe_load((site / "host_vars" / f"{container}.yml").read_text())
    return Outside(container, declared["pve_container_ip"].partition("/")[0])


@pytest.fixture(scope="module")
def recorded(outside: Outside) -> Iterator[Recorded]:
    """The engine's place is taken by one that writes down what reaches it."""
    outside.engine.begin()
    yield outside.engine
    outside.engine.end()


@pytest.fixture
def taken(recorded: Recorded) -> Recorded:
    recorded.forget()
    return recorded


@more
def test_check_mode_says_what_the_provision_then_changes(steps: Steps) -> None:
    predicted, changed = steps
    assert predicted == changed
    # the package may be there already
    assert sum(role == "api_proxy" for role, _ in changed) >= 2, changed


@more
def test_clients_get_four_routes_with_a_key_and_nothing_else(outside: Outside, container: str) -> None:
    assert outside.door.ask("GET", "/v1/models", ALICE).status == 200
    asked = {
        (path, key): outside.door.ask("GET", path, key).status
        for path in ("/v1/models", "/server_info", "/flush_cache", "/metrics")
        for key in ("", ALICE[:-1] + "x", ALICE)
    }
    assert {answer for (path, key), answer in asked.items() if key != ALICE and path == "/v1/models"} == {401}
    assert {answer for (path, _), answer in asked.items() if path != "/v1/models"} == {404}
    # past the proxy there is nothing
    assert inside(container, "ss -Hltn 'sport = 30000' | awk '{print $4}'") == "127.0.0.1:30000"
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection(outside.address, 30000, timeout=10).request("GET", "/v1/models")


@more
@pytest.mark.usefixtures("outside")
def test_a_second_run_changes_nothing(copy: Path, container: str) -> None:
    again = rackwell("provision", container, "-i", copy, "--no-bench")
    assert (again.code, again.result["changed"]) == (0, 0), again.json


@more
def test_the_engine_streams_through_it(outside: Outside) -> None:
    connection = http.client.HTTPSConnection(outside.address, 443, timeout=60, context=ssl._create_unverified_context())
    body = '{"model": "glm-5", "stream": true, "max_tokens": 8, "messages": [{"role": "user", "content": "Paris"}]}'
    headers = {"Authorization": f"Bearer {BOB}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type", "").split(";")[0]) == (200, "text/event-stream")
    events = [line for line in answer.read().decode().splitlines() if line]
    assert len(events) > 3
    assert events[-1] == "data: [DONE]"


# ---- what verify finds, and provision mends --------------------------------------------------------------------------


def play(copy: Path, container: str, part: str, *given: str) -> str:
    """A part of the role, as `rackwell verify` and `rackwell provision` include it: what is said when it fails."""
    book = copy / f"proxy-{part}.yml"
    role = {"name": "rackwell.gpu.api_proxy", "tasks_from": part}
    tasks = [{"name": "Ask", "ansible.builtin.include_role": role}]
    book.write_text(yaml.safe_dump([{"hosts": container, "gather_facts": False, "tasks": tasks}]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(copy), str(book)]
    for one in given:
        command += ["-e", one]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=env)
    return "" if done.returncode == 0 else done.stdout


@more
@pytest.mark.usefixtures("outside")
def test_verify_fails_with_its_row_when_nginx_is_stopped(copy: Path, container: str) -> None:
    inside(container, "systemctl stop nginx")
    try:
        ended = rackwell("verify", container, "-i", copy)
    finally:
        inside(container, "systemctl start nginx")
    row = next(check for check in ended.result["checks"] if check["item"] == "proxy")
    assert (ended.code, row["verdict"]) == (1, "fail"), ended.json
    assert ended.codes == ["proxy-differs"]
    assert "nginx does not run" in ended.json["problems"][0]["why"]
    assert "rackwell provision" in ended.json["problems"][0]["fix"]
    assert play(copy, container, "check") == ""


FOREIGN = "/etc/nginx/sites-enabled/mine"
DROP_IN = "/etc/systemd/system/nginx.service.d/rackwell-api-proxy.conf"
# an engine that listens in the network as well
ALSO_ELSEWHERE = (
    "systemd-run -q --unit elsewhere python3 -m http.server --bind $(hostname -I | cut -d' ' -f1) 30000; "
    "for n in $(seq 100); do ss -Hltn 'sport = 30000' | grep -vq 127.0.0.1 && exit 0; sleep 0.1; done; exit 1"
)
BACK = "rm -rf {0}; cp -a /root/set {0}; systemctl reload nginx"


@more
@pytest.mark.parametrize(
    ("broken", "mended", "code", "word"),
    [
        ("sed -i 's/ 404;/ 200;/' {0}/nginx.conf", BACK, "proxy-differs", "its files"),
        ("sed -i 's/ 404;/ 200;/' {0}/nginx.conf; systemctl reload nginx", BACK, "proxy-wrong-answer", "server_info"),
        ("chmod 0644 {0}/keys.conf", BACK, "proxy-differs", "others can read"),
        ("truncate -s 0 {0}/key.pem", BACK, "proxy-differs", "its files"),
        (f"mkdir -p /etc/nginx/sites-enabled; touch {FOREIGN}", f"rm {FOREIGN}", "nginx-in-use", FOREIGN),
        ("systemctl disable -q nginx", "systemctl enable -q nginx", "proxy-differs", "does not start with the machine"),
        (f"mv {DROP_IN} /root", f"mv /root/rackwell-api-proxy.conf {DROP_IN}", "proxy-differs", "the drop-in"),
        (
            ALSO_ELSEWHERE,
            "systemctl stop elsewhere",
            "engine-exposed",
            "past the proxy",
        ),
    ],
    ids=["edited", "edited-live", "keys-readable", "key-empty", "foreign", "disabled", "drop-in", "exposed"],
)
def test_what_somebody_changed_is_told(
    outside: Outside, copy: Path, container: str, broken: str, mended: str, code: str, word: str
) -> None:
    del outside
    live = inside(container, f"readlink -f {LIVE}")
    inside(container, f"rm -rf /root/set; cp -a {live} /root/set; {broken.format(live)}")
    try:
        told = play(copy, container, "check")
    finally:
        inside(container, mended.format(live))
    assert f'"code": "{code}"' in told
    assert word in told


def of_yesterday() -> str:
    """A key and a certificate of yesterday."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    then = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), then, then)
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("x")]), critical=False)
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    text = made.sign(key, hashes.SHA256()).public_bytes(forms[0]) + key.private_bytes(*forms)
    return base64.b64encode(text).decode()


@more
def test_an_expired_certificate_is_told_by_name(outside: Outside, copy: Path, container: str) -> None:
    del outside
    given = ["api_proxy_certificate_from=container", "api_proxy_certificate=/root/x.pem"]
    given.append("api_proxy_certificate_key=/root/x.key")
    inside(container, f"echo {of_yesterday()} | base64 -d | tee /root/x.pem >/root/x.key; chmod 0600 /root/x.key")
    assert '"code": "certificate-expired"' in play(copy, container, "check", *given)
    inside(container, "chmod 0644 /root/x.key")
    assert '"code": "secret-readable"' in play(copy, container, "check", *given)
    inside(container, "rm /root/x.*")


@more
def test_what_was_changed_is_mended_by_the_next_run(outside: Outside, copy: Path, container: str) -> None:
    inside(container, f"truncate -s 0 {LIVE}/key.pem; chmod 0644 {LIVE}/keys.conf; rm {DROP_IN}")
    inside(container, "systemctl disable -q --now nginx")
    # the role alone, as the provision includes it
    assert play(copy, container, "main") == ""
    assert play(copy, container, "check") == ""
    assert outside.door.ask("GET", "/v1/models", ALICE).status == 200


# ---- a roll ----------------------------------------------------------------------------------------------------------

ELSEWHERE = 30017


@more
def test_a_roll_takes_it_along_to_another_port_and_back(outside: Outside, copy: Path, container: str) -> None:
    declared = yaml.safe_load((copy / "host_vars" / f"{container}.yml").read_text())["release_build"]
    name = yaml.safe_load((copy / "group_vars/gpu_containers.yml").read_text())["inference_server_profile"]
    profile = copy / "profiles" / f"{name}.yml"
    server = yaml.safe_load(profile.read_text())["server"]
    before = inside(container, f"readlink {LIVE}")
    flags = ["-i", copy, "--limit", container, "--skip-gate", "bench", "--reason", "the proxy's way is looked at"]
    change(profile, {"server": server | {"port": ELSEWHERE}})
    try:
        rolled = rackwell("roll", declared, *flags)
        assert (rolled.code, rolled.result["hosts"][0]["result"]) == (0, "promoted"), rolled.json["problems"]
        assert inside(container, f"ss -Hltn 'sport = {ELSEWHERE}' | awk '{{print $4}}'") == f"127.0.0.1:{ELSEWHERE}"
        assert outside.door.ask("GET", "/v1/models", ALICE).status == 200
        # nothing is left for a provision to do
        assert play(copy, container, "check") == ""
        after = inside(container, f"readlink {LIVE}")
        assert after != before
        back = rackwell("rollback", rolled.result["run"], "-i", copy)
        assert back.result["hosts"][0]["result"] == "returned", back.json
    finally:
        change(profile, {"server": server})
    assert inside(container, f"readlink {LIVE}") == before
    assert outside.door.ask("GET", "/v1/models", ALICE).status == 200


# ---- the engine's place is taken by one that writes down each byte ---------------------------------------------------


@more
@pytest.mark.parametrize("version", Inventories(shipped.catalog()).versions())
def test_of_all_routes_of_a_release_only_the_listed_ones_reach_it(
    outside: Outside, taken: Recorded, version: str
) -> None:
    inventory = Inventories(shipped.catalog()).get(version)
    assert inventory is not None
    statuses: dict[tuple[str, str, str], int] = {}
    paths = {re.sub(r"\{.*?\}", "x", route.path.replace("$", "/")) for route in inventory.routes}
    with contextlib.ExitStack() as stack:
        stream: ssl.SSLSocket | None = None
        for key in (ALICE, ""):
            for path in sorted(paths):
                for method in METHODS:
                    stream = stream or stack.enter_context(outside.connect())
                    body = b"{}" if method in {"POST", "PUT", "PATCH"} else b""
                    stream.sendall(request(f"{method} {path} HTTP/1.1", key=key, body=body, close=False))
                    answer = http.client.HTTPResponse(stream, method=method)
                    answer.begin()
                    answer.read()
                    statuses[method, path, key] = answer.status
                    if answer.will_close:
                        stream = None
    with_key = {(method, path) for (method, path, key), status in statuses.items() if key and status == 200}
    assert with_key == LISTED
    # whoever asks without a key too often is slowed down
    refused = {status for (method, path, key), status in statuses.items() if not key and (method, path) in LISTED}
    assert refused <= {401, 429}
    rest = {status for (method, path, _), status in statuses.items() if (method, path) not in LISTED}
    assert rest <= {404, 405}
    assert sorted(one.route for one in taken.seen) == sorted(LISTED)
    assert taken.odd == []


TRICKS = [
    "//v1/models",
    "/v1//models",
    "/v1/./models",
    "/x/../v1/models",
    "/v1/models/../../server_info",
    "/v1/models%2f..%2f..%2fserver_info",
    "/v1/models/%2e%2e/%2e%2e/server_info",
    "/v1/..;/server_info",
    "/v1/%6dodels",
    "/v1%2fmodels",
    "/V1/models",
    "/v1/models\\..\\..\\server_info",
    "/server_info?/v1/models",
    "/server_info#/v1/models",
    "http://127.0.0.1:30000/server_info",
    "http://127.0.0.1:30000/v1/models",
    "//127.0.0.1:30000/server_info",
    "127.0.0.1:30000",
    "*",
    "/.rackwell/refused",
]
SECOND = b"GET /server_info HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = [
    (["Transfer-Encoding: chunked", "Content-Length: 4"], b"0\r\n\r\n" + SECOND),
    (["Content-Length: 2", "Content-Length: 44"], b"{}" + SECOND),
    (["Transfer-Encoding: chunked, identity"], b"0\r\n\r\n" + SECOND),
    (["Transfer-Encoding : chunked"], b"0\r\n\r\n" + SECOND),
    (["Transfer-Encoding:\x0bchunked"], b"0\r\n\r\n" + SECOND),
    (["Transfer-Encoding: chunked"], b"2\r\n{}\r\n0\r\n\r\n" + SECOND),
    (["Content-Length: 0"], SECOND),
    (
        [
            "Upgrade: h2c",
            "Connection: Upgrade, HTTP2-Settings",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
            "Content-Length: 0",
        ],
        b"",
    ),
    (["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eHh4"], b""),
    (["Expect: 100-continue", "Content-Length: 2"], b"{}" + SECOND),
]


@more
def test_no_trick_of_a_path_or_of_lengths_reaches_another_route(outside: Outside, taken: Recorded) -> None:
    for target in TRICKS:
        for method in ("GET", "POST", "CONNECT"):
            answer = outside.raw(request(f"{method} {target} HTTP/1.1", body=b"{}" if method == "POST" else b""))
            assert status_of(answer) in {400, 404, 405}, (method, target, answer)
    assert taken.seen == []
    for headers, body in SMUGGLED:
        outside.raw(request("POST /v1/completions HTTP/1.1", *headers, close=False) + body)
    seen = taken.seen
    assert {one.line for one in seen} == {"POST /v1/completions HTTP/1.1"}
    assert all(set(one.headers) <= api_proxy_fuzz.TOLD and one.body in {b"", b"{}"} for one in seen)
    assert taken.odd == []


@more
def test_tokens_arrive_one_by_one(outside: Outside, taken: Recorded) -> None:
    with outside.connect() as client:
        client.sendall(request("POST /v1/chat/completions HTTP/1.1", body=b'{"pieces": 3}', close=False))
        taken.go(0)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        for number in range(3):
            # the next one is made only when this one has arrived: what is held back would never come
            assert (answer.readline(), answer.readline()) == (b"data: %d\n" % number, b"\n")
            taken.go(number + 1)
        assert answer.read() == b""


@more
def test_malformed_requests_neither_reach_the_engine_nor_end_the_proxy(outside: Outside, recorded: Recorded) -> None:
    del recorded
    count = int(os.environ.get("RACKWELL_PROXY_FUZZ", "1000"))
    statuses = api_proxy_fuzz.run(outside, count, seed=1, tell=print)  # type: ignore[arg-type]
    assert statuses[400] > count // 10
    assert statuses[200] > 0


@more
def test_slow_clients_block_nobody(outside: Outside, taken: Recorded) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(outside.connect()) for _ in range(200)]
        for number, stream in enumerate(slow):
            # of the one kind headers never end, of the other bodies; the last say nothing at all
            if number % 3 == 0:
                stream.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A: ")
            elif number % 3 == 1:
                stream.sendall(request("POST /v1/completions HTTP/1.1", "Content-Length: 100", close=False) + b"{")
        for _ in range(20):
            assert outside.door.ask("GET", "/v1/models", BOB).status == 200
        # nothing of those that have not come whole
        assert {one.route for one in taken.seen} == {("GET", "/v1/models")}
        # half a header is given ten seconds, whatever drips in meanwhile
        eventually(lambda: dripped(slow[::3]) == 0, "those with half a header are held for ever", 60)
    assert taken.odd == []


def dripped(streams: list[ssl.SSLSocket]) -> int:
    """How many of them are still there for one byte more."""
    there = 0
    for stream in streams:
        stream.settimeout(0.05)
        try:
            stream.sendall(b"z")
            there += stream.recv(1) != b""
        except TimeoutError:
            there += 1
        except OSError:
            continue
    return there
