# SPDX-License-Identifier: Apache-2.0
"""The module from its arguments to its result: what it says, changes, logs and never tells. Real nginx, no systemd."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args
from ansible_collections.rackwell.gpu.plugins.module_utils.inference_ports import Listener
from ansible_collections.rackwell.gpu.plugins.modules import api_proxy

sys.path.insert(0, str(Path(__file__).parent))
from api_proxy_place import ALICE, BOB, ENGINE, Place, place

ROUTES = [
    {"path": "/v1/chat/completions", "methods": ["POST"]},
    {"path": "/v1/completions", "methods": ["POST"]},
    {"path": "/v1/models", "methods": ["GET"]},
    {"path": "/health", "methods": ["GET"]},
]


class Rig:
    """A container without systemd, and the module in it."""

    def __init__(self, here: Place, capsys: pytest.CaptureFixture[str]) -> None:
        self.here, self._capsys = here, capsys
        self.logged: list[str] = []
        self.said = ""
        self.drop_in = here.path / "drop-in.conf"
        self.drop_in.write_text("[Service]\n")

    def run(self, *, check: bool = False, **given: Any) -> dict[str, Any]:
        """One run, and what it returned."""
        arguments = {
            "configuration": self.here.files()["nginx.conf"],
            "keys": {"alice": ALICE},
            "engine": f"127.0.0.1:{self.here.engine.port}",
            "engine_key": ENGINE,
            "address": "127.0.0.1",
            "port": self.here.port,
            "certificate_from": "self-signed",
            "routes": ROUTES,
            "unit": self.here.nginx.unit,
            "drop_in": str(self.drop_in),
            "root": str(self.here.path / "root"),
            "run": str(self.here.path / "run"),
            "cache": str(self.here.path / "cache"),
            "_ansible_check_mode": check,
            "_ansible_diff": True,
            **given,
        }
        with patch_module_args(arguments), contextlib.suppress(SystemExit):
            api_proxy.main()
        out = self._capsys.readouterr().out
        self.said += out
        return dict(json.loads(out))

    def files(self) -> set[str]:
        """All that lies there, and what it is."""
        root = self.here.path / "root"
        return {f"{path.relative_to(root)} {path.stat().st_mtime_ns}" for path in root.rglob("*") if path.exists()}


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Rig]:
    with place() as here:
        made = Rig(here, capsys)
        monkeypatch.setattr(api_proxy, "Nginx", lambda run, cache: here.nginx)
        monkeypatch.setattr(here.nginx, "other_sites", list)
        monkeypatch.setattr(
            basic.AnsibleModule, "log", lambda self, msg, log_args=None: made.logged.append(f"{msg} {log_args}")
        )
        yield made


def test_the_life_of_a_proxy(rig: Rig) -> None:
    # check mode says what the run then does, and does nothing
    for given, steps in (
        ({}, ["certificate", "write", "switch", "start", "enable"]),
        ({"keys": {"alice": ALICE, "bob": BOB}}, ["write", "switch", "reload"]),
        ({"keys": {"bob": BOB}, "unit": "unit-2"}, ["write", "switch", "restart"]),
        ({"keys": {"bob": BOB}, "unit": "unit-2", "names": ["glm5.example"]}, ["certificate"]),
    ):
        rig.here.nginx.unit = given.get("unit", "unit-1")
        before, did = rig.files(), list(rig.here.nginx.did)
        foretold = rig.run(check=True, **given)
        assert (rig.files(), rig.here.nginx.did) == (before, did)
        told = rig.run(**given)
        for one in (foretold, told):
            assert one["changed"], one
            assert one["rackwell_result"]["steps"][: len(steps)] == steps
        # a certificate that is yet to be made decides over what comes after it
        if steps[0] != "certificate":
            assert foretold["rackwell_result"]["set"] == told["rackwell_result"]["set"]
            assert foretold["diff"] == told["diff"]
        result = told["rackwell_result"]
        assert result["running"] == result["set"]
        assert result["clients"] == sorted(given.get("keys", {"alice": ALICE}))
        assert result["certificate"]["days_left"] > 390
        for check in (True, False):
            again = rig.run(check=check, **given)
            assert not again["changed"]
            assert again["rackwell_result"]["steps"] == []
    given = {"keys": {"bob": BOB}, "unit": "unit-2", "names": ["glm5.example"]}
    checked = rig.run(state="checked", **given)
    assert [(one["expected"], one["status"]) for one in checked["rackwell_result"]["asked"]] == [
        (404, 404),
        (401, 401),
        (401, 401),
        (200, 200),
    ]
    assert rig.here.door.ask("GET", "/v1/models", ALICE).status == 401

    assert rig.run(state="absent", check=True)["changed"]
    assert rig.here.nginx.pid
    assert rig.run(state="absent")["changed"]
    assert not rig.here.nginx.pid
    assert not any(path.exists() for path in (rig.here.path / "root", rig.here.path / "cache", rig.drop_in))
    assert not rig.run(state="absent")["changed"]

    for secret in (ALICE, BOB, ENGINE, "MARKED", "PRIVATE"):
        assert secret not in rig.said
        assert secret not in "".join(rig.logged)


def test_verify_tells_what_is_not_as_declared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.run(state="checked")["rackwell_error"]["code"] == "proxy-differs"
    rig.run()
    digest = hashlib.sha256(rig.drop_in.read_bytes()).hexdigest()
    told = rig.run(state="checked", drop_in_digest=digest)
    assert told["rackwell_result"]["engine_listens"] == ["127.0.0.1"]
    rig.drop_in.write_text("# gone\n")
    told = rig.run(state="checked", drop_in_digest=digest)
    assert "the drop-in of nginx.service is not rackwell's" in told["rackwell_error"]["why"]
    with monkeypatch.context() as patch:
        everywhere = [Listener("0.0.0.0", rig.here.engine.port, 1)]
        patch.setattr(api_proxy, "listeners", lambda: everywhere)
        for state in ("checked", "present"):
            told = rig.run(state=state)
            assert (told["rackwell_error"]["code"], told.get("changed")) == ("engine-exposed", None), told
    with monkeypatch.context() as patch:
        patch.setattr(rig.here.nginx, "other_sites", lambda: ["/etc/nginx/conf.d/shop.conf"])
        assert rig.run(state="checked")["rackwell_error"]["code"] == "nginx-in-use"
    told = rig.run(state="checked", keys={"bob": BOB})
    assert told["rackwell_error"]["code"] == "proxy-wrong-answer"
    assert told["rackwell_result"]["asked"]
    rig.here.engine.answer = lambda seen, connection: connection.close()
    told = rig.run(state="checked")
    assert told["rackwell_error"]["code"] == "proxy-wrong-answer"
    assert "GET /v1/models with the key" in told["rackwell_error"]["what"]


def test_what_was_taken_back_is_said_to_be(rig: Rig) -> None:
    rig.run()
    broken = rig.here.files()["nginx.conf"].replace("listen 127.0.0.1", "listen 300.0.0.1")
    told = rig.run(configuration=broken)
    assert told["rackwell_error"]["code"] == "proxy-config-refused"
    assert not rig.run()["changed"]


def test_other_sites_are_not_ended_by_surprise(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.here.nginx, "other_sites", lambda: ["/etc/nginx/sites-enabled/shop"])
    monkeypatch.setattr(rig.here.nginx, "started_with", lambda: "")
    told = rig.run()
    assert told["rackwell_error"]["code"] == "nginx-in-use"
    assert "shop" in told["msg"]
    # and what is not rackwell's is not stopped by taking its own away
    assert rig.run(state="absent")["changed"]
    assert rig.here.nginx.did == ["daemon-reload"]


@pytest.mark.parametrize(
    "key", ["short", "nasty'0123456789012345", "nasty\n0123456789012345", "{{ x }}0123456789012345"]
)
def test_keys_that_are_none_are_refused_and_not_told(rig: Rig, key: str) -> None:
    told = rig.run(keys={"mallory": key})
    assert told["rackwell_error"]["code"] == "api-key-invalid"
    assert key not in rig.said
    assert json.dumps(key)[1:-1] not in rig.said
    assert not (rig.here.path / "root/live").exists()
