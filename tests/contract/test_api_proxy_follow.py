# SPDX-License-Identifier: Apache-2.0
"""A roll that has the engine listen elsewhere, or ask for another key, takes the proxy along: with real nginx."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_keys, proxy_set
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_follow import Follower, FollowError
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_nginx import NginxError

sys.path.insert(0, str(Path(__file__).parent))
from api_proxy_place import ALICE, ENGINE, KEYS, Engine, Place, place, render

OTHER = "sk-MARKED-other-engine-0123456789"


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place() as made:
        made.start()
        yield made


@pytest.fixture
def follower(here: Place) -> Follower:
    return Follower(proxy_set.Sets(str(here.path / "root")), here.nginx)


@pytest.fixture
def other(here: Place, follower: Follower) -> Iterator[Engine]:
    engine = Engine()
    here.engine.forget()
    yield engine
    follower.follow("127.0.0.1", here.engine.port, ENGINE)
    engine.close()


def live(here: Place) -> str:
    return proxy_set.Sets(str(here.path / "root")).current()


def test_it_goes_there_and_back_to_the_very_sets_that_a_provision_makes(
    here: Place, follower: Follower, other: Engine
) -> None:
    before = live(here)
    assert not follower.follow("127.0.0.1", here.engine.port, ENGINE)
    assert follower.follow("127.0.0.1", other.port, OTHER)
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    assert [seen.headers["authorization"] for seen in other.seen] == [f"Bearer {OTHER}"]
    assert here.engine.seen == []
    text = render(here.path, here.port, other.port)
    keys = proxy_keys.render(KEYS, OTHER)
    assert live(here) == proxy_set.wanted({**here.files(), "nginx.conf": text, "keys.conf": keys}).name
    held = (here.path / "root/live").resolve()
    assert {path.stat().st_mode & 0o777 for path in held.iterdir()} == {0o600}
    assert [path.name for path in held.parent.iterdir()] == [held.name]
    assert follower.follow("127.0.0.1", here.engine.port, ENGINE)
    assert live(here) == before
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    assert len(here.engine.seen) == 1


def test_one_that_runs_with_another_set_than_the_live_one_is_reloaded(
    here: Place, follower: Follower, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as after a boot, where files are put back while nginx comes up
    monkeypatch.setattr(here.nginx, "started_with", lambda: None)
    assert follower.follow("127.0.0.1", other.port, OTHER)
    monkeypatch.undo()
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    assert other.seen == []
    assert follower.follow("127.0.0.1", other.port, OTHER)
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    assert len(other.seen) == 1


def test_what_nginx_does_not_take_is_not_left_behind(
    here: Place, follower: Follower, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = live(here)

    def refuse(configuration: str) -> None:
        raise NginxError(f'unknown "x" in {OTHER}')

    monkeypatch.setattr(here.nginx, "test", refuse)
    with pytest.raises(FollowError) as error:
        follower.follow("127.0.0.1", other.port, OTHER)
    assert OTHER not in str(error.value)
    assert live(here) == before
    assert here.door.ask("GET", "/v1/models", ALICE).status == 200
    assert other.seen == []


def test_what_cannot_go_along_is_told_before_anything_is_touched(here: Place, follower: Follower) -> None:
    assert follower.lacking("127.0.0.1", here.engine.port, ENGINE) == []
    assert follower.lacking("::1", 1, "") == []
    assert [lack.code for lack in follower.lacking("127.0.0.1", 1, 'a"; }')] == ["proxy-differs"]
    file = (here.path / "root/live/nginx.conf").resolve()
    text = file.read_text()
    file.write_text(text.replace("upstream rackwell_engine", "upstream mine"))
    try:
        told = follower.lacking("127.0.0.1", 1, ENGINE)
        assert [(lack.code, lack.fix.startswith("rackwell provision")) for lack in told] == [("proxy-differs", True)]
    finally:
        file.write_text(text)


def test_without_a_proxy_there_is_nothing_to_do(tmp_path: Path, here: Place) -> None:
    none = Follower(proxy_set.Sets(str(tmp_path)), here.nginx)
    assert none.lacking("127.0.0.1", 1, ENGINE) == []
    assert not none.follow("127.0.0.1", 1, ENGINE)
