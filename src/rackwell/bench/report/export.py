# SPDX-License-Identifier: Apache-2.0
"""Drawings of a report as files for a paper: SVG that stands alone, or PNG."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from rackwell import page
from rackwell.errors import ExitCode, Problem, RackwellError
from rackwell.site import files

#: Pixels for each SVG unit of a PNG: 300 dpi where a unit is printed as 1/100 inch.
ZOOM = 3.0
_FONTS = "Inter, Helvetica, Arial, 'DejaVu Sans', sans-serif"
_VARIABLE = re.compile(r"--([\w-]+):\s*([^;]+);")
_CLASS = re.compile(r"^\.([\w-]+) \{ --c: (.+?); \}$")
_RULE = re.compile(r"^svg (.+?) \{ (.+) \}$")
_USED = re.compile(r"var\(--([\w-]+)(?:,\s*(var\(--[\w-]+\)))?\)")


def standalone(drawing: str) -> str:
    """The SVG of a page as a document of its own: its size, its colours (those of paper), a white ground."""
    drawing = re.sub(r' (?:tabindex|data-[\w]+)="[^"]*"', "", drawing)
    drawing = re.sub(r'<g class="series s-ink"></g>', "", drawing)
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    width, height = (float(size) for size in found.groups()) if found else (520.0, 300.0)
    # labels may stand a little above and beside what the page's box holds
    box = f'viewBox="-8 -8 {width + 16:g} {height + 16:g}" width="{width + 16:g}" height="{height + 16:g}"'
    drawing = re.sub(r'viewBox="[^"]*"', f'xmlns="http://www.w3.org/2000/svg" {box}', drawing, count=1)
    ground = f'<rect x="-8" y="-8" width="{width + 16:g}" height="{height + 16:g}" fill="#ffffff"/>'
    style = f"<style>{style_of(drawing)}</style>"
    drawing = re.sub(r"(</desc>)", lambda end: f"{end[0]}{style}{ground}", drawing, count=1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawing}\n'


def style_of(drawing: str) -> str:
    """The rules of ``plot.css`` with every variable replaced; only those whose classes the drawing has.

    Programs that read SVG know no variables, and a class's own colour ``--c`` becomes a rule for each class.
    """
    sheet = resources.files(page).joinpath("plot.css").read_text(encoding="utf-8")
    base = resources.files(page).joinpath("base.css").read_text(encoding="utf-8")
    variables = dict(_VARIABLE.findall(base[base.index(":root") : base.index("@media")])) | {"card": "#ffffff"}
    colours: dict[str, str] = {}
    rules: list[tuple[str, str]] = []
    for line in sheet.splitlines():
        if colour := _CLASS.match(line):
            colours[colour[1]] = colour[2]
        elif rule := _RULE.match(line):
            rules.append((rule[1], rule[2]))
    present = {word for names in re.findall(r'class="([^"]*)"', drawing) for word in names.split()}
    # text without a class of its own
    lines = [f"svg {{ font-family: {_FONTS}; }}"]
    for selector, body in rules:
        wanted = set(re.findall(r"\.([\w-]+)", selector))
        if not wanted <= present:
            continue
        if "var(--c" in body:
            lines += _coloured(selector, body, {k: v for k, v in colours.items() if k in present}, variables)
        else:
            lines.append(f"svg {selector} {{ {_resolved(body, variables)} }}")
    return "\n".join(lines)


def _coloured(selector: str, body: str, colours: dict[str, str], variables: dict[str, str]) -> list[str]:
    """The rule without a colour where it has another one to fall back on, and once for each class."""
    first, _space, rest = selector.partition(" ")
    made = []
    fallback = re.sub(r"var\(--c,\s*(var\(--[\w-]+\))\)", r"\1", body)
    if "var(--c)" not in fallback:
        made.append(f"svg {selector} {{ {_resolved(fallback, variables)} }}")
    for name, colour in colours.items():
        filled = re.sub(r"var\(--c(?:,\s*var\(--[\w-]+\))?\)", colour, body)
        made.append(f"svg {first}.{name}{' ' + rest if rest else ''} {{ {_resolved(filled, variables)} }}")
    return made


def _resolved(body: str, variables: dict[str, str]) -> str:
    return _USED.sub(lambda used: variables.get(used[1], "#000000").strip(), body)


def png(drawing: str) -> bytes:
    """A standalone SVG as PNG.

    Raises:
        RackwellError: the library that draws it is not installed (exit 2).
    """
    try:
        import resvg_py
    except ImportError as error:
        raise RackwellError(
            Problem(
                "no-png",
                "PNG needs a library that is not installed",
                "resvg-py",
                "it is an extra, since HTML and SVG need nothing",
                "pip install 'rackwell[plots]', or --plot-format svg",
            ),
            ExitCode.INVALID,
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=ZOOM, sans_serif_family="DejaVu Sans"))


def write(drawings: dict[str, str], directory: Path, form: str = "svg") -> list[Path]:
    """Write each drawing to `directory` under its name. Returns the files.

    Raises:
        RackwellError: `form` is no known one or lacks its library (exit 2), or a file cannot be written (exit 1).
    """
    if form not in {"svg", "png"}:
        raise RackwellError(
            Problem("plot-format", "there is no such format of plots", repr(form), fix="svg or png"), ExitCode.INVALID
        )
    if form == "png":
        png('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>')
    made = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, drawing in drawings.items():
            file = directory / f"{name}.{form}"
            text = standalone(drawing)
            if form == "png":
                file.write_bytes(png(text))
            else:
                files.write(file, text)
            made.append(file)
    except OSError as error:
        raise RackwellError(
            Problem("cannot-write", "the plots cannot be written", str(directory), error.strerror or str(error))
        ) from error
    return made
