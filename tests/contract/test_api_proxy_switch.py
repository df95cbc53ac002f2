# SPDX-License-Identifier: Apache-2.0
"""The switch of the proxy: tried before, proven after, taken back when it does not hold; by real nginx."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import (
    proxy_keys,
    proxy_nginx,
    proxy_probe,
    proxy_run,
    proxy_set,
)

sys.path.insert(0, str(Path(__file__).parent))
from api_proxy_engine import Request
from api_proxy_place import ALICE, BOB, ENGINE, KEYS, Place, eventually, place, request, status_of

SECRETS = [*KEYS.values(), ENGINE]


class Rig:
    """The proxy of a place, and targets for it."""

    def __init__(self, here: Place) -> None:
        self.here = here
        self.sets = proxy_set.Sets(str(here.path / "root"))
        self.proxy = proxy_run.Proxy(self.sets, here.nginx, patience=20)
        self.files = here.files()

    def target(self, files: dict[str, str] | None = None, **other: object) -> proxy_run.Target:
        given = proxy_run.Target(
            want=proxy_set.wanted(files or self.files),
            unit=self.here.nginx.unit,
            door=self.here.door,
            certificate=b"",
            routes=[("/v1/models", "GET"), ("/v1/completions", "POST")],
            models=True,
            key=ALICE,
            engine=f"127.0.0.1:{self.here.engine.port}",
            engine_key=ENGINE,
        )
        return given._replace(**other)  # type: ignore[arg-type]

    def bring(self, target: proxy_run.Target) -> list[str]:
        """Bring it there, and return what was missing."""
        self.here.nginx.did.clear()
        steps = self.proxy.steps(target)
        if steps:
            self.proxy.bring(target, SECRETS)
        return steps

    def with_text(self, old: str, new: str) -> dict[str, str]:
        """The files with another configuration."""
        text = self.files["nginx.conf"]
        assert old in text
        return {**self.files, "nginx.conf": text.replace(old, new)}

    def runs(self, target: proxy_run.Target) -> bool:
        """Whether nginx runs with it, and serves."""
        return (
            proxy_probe.running_set(str(self.here.path / "run")) == target.want.name
            and self.sets.current() == target.want.name
            and target.door.ask("GET", "/v1/models", ALICE).status == 200
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    with place() as here:
        yield Rig(here)


def test_it_is_brought_once_and_only_what_changed_is_done(rig: Rig) -> None:
    first = rig.target()
    assert rig.bring(first) == ["write", "switch", "start", "enable"]
    assert rig.runs(first)
    assert rig.bring(first) == []
    held = [path for path in (rig.here.path / "root").rglob("*") if not path.is_symlink()]
    assert {path.stat().st_mode & 0o077 for path in held} == {0}

    master = rig.here.nginx.pid
    carol = {"alice": ALICE, "carol": BOB}
    second = rig.target({**rig.files, "keys.conf": proxy_keys.render(carol, ENGINE)})
    assert rig.bring(second) == ["write", "switch", "reload"]
    assert rig.here.nginx.did == ["daemon-reload", "reload"]
    assert rig.here.nginx.pid == master
    assert rig.runs(second)
    assert [path.name for path in (rig.here.path / "root/sets").iterdir()] == [second.want.name]
    # a drop-in is taken by a start alone
    rig.here.nginx.unit = "unit-2"
    assert rig.bring(rig.target(second.want.files and {**rig.files, "keys.conf": second.want.files["keys.conf"]})) == [
        "restart"
    ]
    assert rig.here.nginx.started_with() == "unit-2"


def test_streams_go_on_over_a_reload(rig: Rig) -> None:
    rig.bring(rig.target())
    go = threading.Event()

    def stream(seen: Request, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        assert go.wait(60)
        connection.sendall(b"3\r\ntwo\r\n0\r\n\r\n")

    rig.here.engine.answer = stream
    with rig.here.connect() as client:
        client.sendall(request("POST /v1/completions HTTP/1.1", body=b"{}", close=False))
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.read(3) == b"one"
        rig.here.engine.answer = rig.here.engine.plain
        rig.bring(rig.target(rig.with_text("keepalive_timeout 75s", "keepalive_timeout 74s")))
        go.set()
        assert answer.read() == b"two"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("keepalive_timeout 75s;", "keepalive_timeout for_ever;"),
        ("include keys.conf;", "include nokeys.conf;"),
        ("ssl_certificate_key key.pem;", "ssl_certificate_key keys.conf;"),
        ("location / {", "location / { }"),
    ],
)
def test_what_nginx_does_not_take_never_becomes_live(rig: Rig, old: str, new: str) -> None:
    first = rig.target()
    rig.bring(first)
    with pytest.raises(proxy_run.ProxyError) as caught:
        rig.bring(rig.target(rig.with_text(old, new)))
    assert caught.value.parts["code"] == "proxy-config-refused"
    assert caught.value.parts["why"]
    assert rig.here.nginx.did == []
    assert rig.runs(first)
    assert rig.bring(first) == []
    assert "MARKED" not in str(caught.value.parts)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        # lets everybody in, lets everything through, reaches no engine, says nothing at all
        ('"" "yes";', '"" "";', "without a key"),
        (
            'map $request $api_route {\n        default "";',
            'map $request $api_route {\n        default "/x";',
            "/server_info",
        ),
        ("proxy_pass http://rackwell_engine", "proxy_pass http://127.0.0.1:1", "does not reach"),
        ("server_name _;", "server_name _; return 444;", "expected"),
    ],
)
def test_what_does_not_hold_is_taken_back(rig: Rig, old: str, new: str, says: str) -> None:
    rig.proxy = proxy_run.Proxy(rig.sets, rig.here.nginx, patience=1.5)
    first = rig.target()
    rig.bring(first)
    with pytest.raises(proxy_run.ProxyError) as caught:
        rig.bring(rig.target(rig.with_text(old, new)))
    told = caught.value.parts
    assert told["code"] == "proxy-broken"
    assert says in f"{told['what']} {told['why']}"
    assert "back" in told["what"]
    assert caught.value.rolled_back
    eventually(lambda: rig.runs(first), "the former one does not run")
    assert rig.bring(first) == []


def test_a_port_that_is_taken_is_told_and_the_former_one_stays(rig: Rig) -> None:
    rig.proxy = proxy_run.Proxy(rig.sets, rig.here.nginx, patience=3)
    first = rig.target()
    rig.bring(first)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        files = rig.with_text(f"listen 127.0.0.1:{rig.here.port} ", f"listen 127.0.0.1:{port} ")
        with pytest.raises(proxy_run.ProxyError) as caught:
            rig.bring(rig.target(files, door=proxy_probe.Door("127.0.0.1", port)))
    assert caught.value.rolled_back
    assert rig.runs(first)


def test_a_first_one_that_does_not_hold_leaves_nothing_listening(rig: Rig) -> None:
    rig.proxy = proxy_run.Proxy(rig.sets, rig.here.nginx, patience=1.5)
    with pytest.raises(proxy_run.ProxyError) as caught:
        rig.bring(rig.target(rig.with_text('"" "yes";', '"" "";')))
    assert not caught.value.rolled_back
    assert "nothing listens" in caught.value.parts["what"]
    assert rig.here.nginx.pid == 0
    assert rig.sets.current() == ""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", rig.here.port), 5)


def test_an_engine_that_is_silent_is_told_apart(rig: Rig) -> None:
    rig.here.engine.answer = lambda seen, connection: connection.sendall(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    )
    target = rig.target()
    with pytest.raises(proxy_run.ProxyError) as caught:
        rig.bring(target)
    assert caught.value.parts["code"] == "engine-silent"
    # the proxy is as it should be, and stays
    rig.here.engine.answer = rig.here.engine.plain
    assert rig.runs(target)
    assert rig.bring(target) == []


@pytest.mark.parametrize("moment", ["written", "switched"])
def test_an_interrupted_run_is_finished_by_the_next(rig: Rig, moment: str) -> None:
    rig.bring(rig.target())
    second = rig.target(rig.with_text("keepalive_timeout 75s", "keepalive_timeout 74s"))
    rig.sets.write(second.want)
    if moment == "switched":
        rig.sets.switch(second.want.name)
        (rig.here.path / "root/live.new").symlink_to("sets/nothing")
    (rig.here.path / "root/sets/.half").mkdir()
    assert rig.bring(second) == (["switch", "reload"] if moment == "written" else ["reload"])
    assert rig.runs(second)
    assert [path.name for path in (rig.here.path / "root/sets").iterdir()] == [second.want.name]


def test_files_that_were_changed_by_hand_are_written_anew(rig: Rig) -> None:
    target = rig.target()
    rig.bring(target)
    keys = Path(rig.sets.path(target.want.name)) / "keys.conf"
    for damage in (lambda: keys.chmod(0o644), lambda: keys.write_text("map"), keys.unlink):
        damage()
        assert rig.bring(target) == ["write", "reload"]
        assert rig.runs(target)
        assert keys.stat().st_mode & 0o777 == 0o600


def test_a_certificate_that_was_renewed_in_its_place_is_taken(rig: Rig) -> None:
    own = rig.here.own
    files = rig.with_text("ssl_certificate certificate.pem", f"ssl_certificate {own.certificate}")
    files["nginx.conf"] = files["nginx.conf"].replace("ssl_certificate_key key.pem", f"ssl_certificate_key {own.key}")
    files = {name: text for name, text in files.items() if not name.endswith(".pem")}

    def der() -> bytes:
        import ssl

        return ssl.PEM_cert_to_DER_cert(Path(own.certificate).read_text())

    assert "start" in rig.bring(rig.target(files, certificate=der()))
    assert rig.bring(rig.target(files, certificate=der())) == []
    own.make(["localhost", "127.0.0.1"])
    target = rig.target(files, certificate=der())
    assert rig.bring(target) == ["reload"]
    assert target.door.certificate() == der()


def test_it_is_taken_away_and_comes_back(rig: Rig) -> None:
    target = rig.target()
    rig.bring(target)
    rig.proxy.remove()
    assert rig.here.nginx.pid == 0
    assert not rig.here.nginx.is_enabled
    assert [path for path in (rig.here.path / "root").rglob("*") if path.is_file()] == []
    assert "start" in rig.bring(target)
    assert rig.runs(target)


def test_workers_that_die_are_made_anew(rig: Rig) -> None:
    target = rig.target()
    rig.bring(target)
    for pid in rig.here.nginx.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: rig.runs(target), "it does not come back")


# ---- keys ------------------------------------------------------------------------------------------------------

NASTY = [
    "",
    "short",
    "x" * 300,
    "white space 0123456789",
    "quote'0123456789012345",
    'double"0123456789012345',
    "new\nline0123456789012345",
    "dollar$0123456789012345",
    "back\\slash0123456789012",
    "semi;colon0123456789012",
    "brace{0123456789012345678",
    "{{ 7*7 }}0123456789012345",
    "ünïcode-0123456789012345",
    "nul\x000123456789012345",
]


@pytest.mark.parametrize("key", NASTY)
def test_keys_that_cannot_be_one_are_refused_and_not_told(key: str) -> None:
    with pytest.raises(proxy_keys.ApiKeyError) as caught:
        proxy_keys.check({"alice": ALICE, "mallory": key})
    assert "mallory" in str(caught.value)
    assert not key or key not in str(caught.value)


def test_keys_with_all_marks_that_a_token_may_have(rig: Rig) -> None:
    keys = {"a.b-c_d": "A.b_c~d+e/f=g-h0123456789==", "other": "A.b_c~d+e/f=g-h0123456789=X", "long": "k" * 256}
    proxy_keys.check(keys)
    rig.bring(rig.target({**rig.files, "keys.conf": proxy_keys.render(keys, ENGINE)}, key=keys["long"]))
    for key in keys.values():
        assert rig.here.door.ask("GET", "/v1/models", key).status == 200
        # none of its marks means more than itself
        for wrong in {key.swapcase(), key.replace(".", "x"), key.replace("+", ""), key[:-1]} - {key}:
            answer = eventually(
                lambda wrong=wrong: (found := rig.here.door.ask("GET", "/v1/models", wrong)).status != 429 and found,
                "429",
            )
            assert answer.status == 401, wrong


def test_what_a_diff_tells_of_keys() -> None:
    before = proxy_set.keys_in(proxy_keys.render({"gone": ALICE, "same": BOB, "other": ALICE + "x"}))
    after = {"new": ALICE + "y", "same": BOB.lower(), "other": (ALICE + "z").lower()}
    told = proxy_keys.changes(before, after)
    assert told == ["key of new: new", "key of gone: gone", "key of other: another"]


def test_secrets_in_what_nginx_says_are_covered() -> None:
    said = f'conflicting parameter "bearer {ALICE.lower()}" in /x:5, {BOB}'
    assert "MARKED" not in re.sub("marked", "MARKED", proxy_nginx.without([ALICE, BOB, ""], said))


def test_a_file_of_keys_is_read_line_by_line() -> None:
    assert proxy_keys.read_file(f"# keys\n\n alice\t{ALICE} \nbob {BOB}\n") == KEYS
    for text in ("alice", f"alice {ALICE} x", f"alice {ALICE}\nalice {BOB}"):
        with pytest.raises(proxy_keys.ApiKeyError) as caught:
            proxy_keys.read_file(text)
        assert "MARKED" not in str(caught.value)


def test_status_of_nothing() -> None:
    assert status_of(b"") == 0
