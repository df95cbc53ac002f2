# SPDX-License-Identifier: Apache-2.0
"""The routes of an engine, read from its source."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rackwell import shipped
from rackwell.build import routes
from rackwell.build.routes import ANY, ENGINE, WEBSOCKET, Inventories, Inventory, Route

MAIN = "sglang/srt/entrypoints/http_server.py"


def of(sources: dict[str, str]) -> tuple[dict[str, Route], list[str]]:
    """Routes of the engine by path, and what could not be read."""
    found, unread = routes.read_sources((path, text.encode()) for path, text in sources.items())
    return {route.path: route for route in found if route.server == ENGINE}, unread


def test_decorators_calls_and_methods() -> None:
    found, unread = of(
        {
            MAIN: """
from fastapi import FastAPI
app = FastAPI(openapi_url=None)

@app.get("/a")
@app.api_route("/b", methods=["POST", "put"])
@auth_level(AuthLevel.ADMIN_FORCE)
async def both(): ...

@app.websocket("/ws")
async def talk(): ...

async def handler(): ...
app.add_api_route("/c", handler, methods=["DELETE"])
app.add_route("/d", handler)
app.patch("/e")(handler)
if True:
    @app.head("/a")
    def again(): ...
"""
        }
    )
    assert {path: route.methods for path, route in found.items()} == {
        "/a": ("GET", "HEAD"),
        "/b": ("POST", "PUT"),
        "/ws": (WEBSOCKET,),
        "/c": ("DELETE",),
        "/d": ("GET",),
        "/e": ("PATCH",),
    }
    assert found["/b"].admin == "ADMIN_FORCE"
    assert not found["/c"].admin
    assert not unread


def test_routers_with_prefixes_from_other_modules() -> None:
    found, unread = of(
        {
            MAIN: """
from fastapi import FastAPI, APIRouter
from sglang.srt.entrypoints.loads import router as loads
from . import more
app = FastAPI(openapi_url=None)
inner = APIRouter(prefix="/inner")
@inner.get("/x")
def x(): ...
loads.include_router(inner, prefix="/deep")
app.include_router(loads, prefix="/v9")
app.include_router(more.router)
app.include_router(unknown_one)
""",
            "sglang/srt/entrypoints/loads.py": """
from fastapi import APIRouter
router = APIRouter(prefix="/loads")
@router.get("")
def all_of_them(): ...
""",
            "sglang/srt/entrypoints/more.py": """
from fastapi import APIRouter
from sglang.srt.entrypoints.http_server import app
router = APIRouter()
@router.post("/more")
def more(): ...
@app.get("/from-elsewhere")
def other(): ...
""",
        }
    )
    assert {"/v9/loads", "/more", "/from-elsewhere"} <= set(found)
    # what is included into a router under another name of it
    assert unread == [f"{MAIN}:12"]


def test_paths_from_the_environment_and_what_cannot_be_told() -> None:
    found, unread = of(
        {
            MAIN: """
import os
from fastapi import FastAPI
app = FastAPI(openapi_url=None)
chat = os.environ.get("CHAT_ROUTE")
PLAIN = "/plain"
@app.get(os.environ.get("TAGS", "/tags"))
@app.get(chat)
@app.get(PLAIN)
@app.get(compute())
def handler(): ...
"""
        }
    )
    assert {path: route.variable for path, route in found.items()} == {
        "/tags": "TAGS",
        "${CHAT_ROUTE}": "CHAT_ROUTE",
        "/plain": "",
    }
    assert unread == [f"{MAIN}:10"]


def test_pages_of_fastapi_and_what_a_helper_mounts() -> None:
    found, _ = of(
        {
            MAIN: """
from fastapi import FastAPI
from sglang.srt.utils import add_metrics
app = FastAPI(docs_url=None)
add_metrics(app)
""",
            "sglang/srt/utils/common.py": """
from starlette.routing import Mount
def add_metrics(app):
    app.routes.append(Mount("/metrics", other))
""",
        }
    )
    assert set(found) == {"/openapi.json", "/redoc", "/docs/oauth2-redirect", "/metrics"}
    assert found["/metrics"].methods == (ANY,)


def test_other_servers_are_told_apart() -> None:
    found, _ = routes.read_sources(
        [
            (
                "sglang/srt/other.py",
                b"""
from aiohttp import web
class Server:
    def __init__(self):
        self.app = web.Application()
        self.app.router.add_route("*", "/route", self.handle)
        self.app.router.add_get("/health", self.handle)
def extend(app):
    app.router.add_post("/profile", handle)
""",
            )
        ]
    )
    assert [(route.path, route.methods, route.server) for route in found] == [
        ("/health", ("GET",), "sglang.srt.other"),
        ("/profile", ("POST",), "sglang.srt.other"),
        ("/route", (ANY,), "sglang.srt.other"),
    ]


def test_a_wheel_without_an_engine_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/srt/nothing.py", "FastAPI = 1")
        archive.writestr("sglang/srt/broken.py", "FastAPI(")
    with pytest.raises(ValueError, match="no module"):
        routes.read_wheel(wheel)


def test_what_is_kept_is_what_was_read(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MAIN, 'app = FastAPI()\n@app.post("/v1/completions")\ndef f(): ...\n')
    found = routes.read_wheel(wheel)
    assert Inventory.from_text(found.as_text()) == found
    assert found.answers("/v1/completions", "POST")
    assert not found.answers("/v1/completions", "GET")


def test_shipped_inventories_hold_what_was_seen_by_hand() -> None:
    known = Inventories(shipped.catalog())
    assert known.versions() == ["0.5.9", "0.5.23"]
    old, new = known.all()
    for inventory in (old, new):
        assert not inventory.unread
        for path, method in (
            ("/v1/chat/completions", "POST"),
            ("/v1/completions", "POST"),
            ("/v1/models", "GET"),
            ("/health", "GET"),
        ):
            assert inventory.answers(path, method)
            assert not inventory.admin(path)
        for path in ("/server_info", "/start_profile", "/load_lora_adapter_from_tensors", "/metrics", "/openapi.json"):
            assert inventory.methods(path), path
        assert inventory.admin("/update_weights_from_tensor")
    beyond = {route.path for route in new.beyond(old)}
    assert {"/v1/realtime", "/scale_elastic_ep", "/v1/audio/transcriptions", "/ready"} <= beyond
    assert "/v1/models" not in beyond
