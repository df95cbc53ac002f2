# SPDX-License-Identifier: Apache-2.0
"""What rackwell's HTML pages have in common: one file each, that asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

import rackwell
from rackwell.page import scales

__all__ = ["coded", "render", "sentence", "when"]

_SHARED = {"base.html.j2", "macros.html.j2"}


def render(package: str, context: dict[str, Any], filters: dict[str, Callable[..., Any]], data: Any = None) -> str:
    """The page whose ``page.html.j2``, ``page.css`` and ``page.js`` (where it has one) lie in `package`.

    The template extends ``base.html.j2`` and may import ``macros.html.j2``; the shared style comes before its own.

    Args:
        data: what the page embeds as JSON, as variable ``data``.
    """

    def load(name: str) -> str:
        return _read(__name__ if name in _SHARED else package, name)

    style = _read(__name__, "base.css") + _read(__name__, "plot.css") + load("page.css")
    script = load("page.js") if resources.files(package).joinpath("page.js").is_file() else ""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(load),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(number=scales.number, sentence=sentence, coded=coded, **filters)
    return environment.get_template("page.html.j2").render(
        style=style,
        script=script,
        policy=_policy(style, script),
        data=_embedded(data),
        version=rackwell.__version__,
        **context,
    )


def sentence(text: str) -> Markup:
    """Text with a capital in front and a stop behind, and what stands between backticks as code."""
    first = text.partition(" ")[0]
    # a name such as cuInit stays what it is
    whole = text if first != first.lower() or first == "rackwell" else text[:1].upper() + text[1:]
    if whole and whole[-1] not in ".!?`":
        whole += "."
    return coded(whole)


def coded(text: str) -> Markup:
    """Text with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def when(date: str) -> str:
    """An ISO 8601 date as people write it; other text as it is."""
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        return date
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be fetched; only this style and this script may act."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    scripts = digest(script) if script else "'none'"
    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {scripts}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Any) -> str:
    """Data as JSON, such that no text in it can end the script element that holds it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
