# SPDX-License-Identifier: Apache-2.0
"""``rackwell build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.cli.output import Outcome, Terminal


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("build")(build)


def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Builds; without one, all that the site's containers use."),
    ] = None,
    site: SiteOption = HERE,
    everything: Annotated[bool, typer.Option("--all", help="Every build file of the site as well.")] = False,
    relock: Annotated[
        bool, typer.Option("--relock", help="Resolve versions anew even where the lock still fits.")
    ] = False,
    python: Annotated[
        str,
        typer.Option("--python", metavar="X.Y", help="Python of the container, where the build's own is not meant."),
    ] = "",
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Sign each release with this SSH key (ssh-keygen -Y)."),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="SIGNERS", help="Check each release's signature with this file of signers."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make releases on this machine.

    Fetched, verified, patched, locked by hash, one digest each.
    """
    seals = (sign, verify)
    execute(
        "build", as_json, lambda terminal: _body(terminal, site, names or [], everything, relock, python or None, seals)
    )


def _body(
    terminal: Terminal,
    path: Path,
    names: list[str],
    everything: bool,
    relock: bool,
    python: str | None,
    seals: tuple[Path | None, Path | None],
) -> Outcome:
    from rackwell.build import signature
    from rackwell.cli.output import Outcome
    from rackwell.provision import builds
    from rackwell.site import declaration

    key, allowed = seals
    signature.require(key, allowed)
    site = declaration.load(path)
    wanted = [(name, python) for name in names] or builds.used(site)
    if everything:
        named = {name for name, _ in wanted}
        wanted += [
            (file.stem, python) for file in sorted((site.path / "builds").glob("*.yml")) if file.stem not in named
        ]
    terminal.safety = "no machine was touched; the next build goes on from what was fetched"
    built = [builds.make(site, name, terminal, relock=relock, python=version) for name, version in wanted]
    results = []
    lines: list[str] = []
    for release in built:
        manifest = release.path / "manifest.json"
        signed = signature.sign(manifest, key) if key else None
        signer = signature.verify(manifest, allowed) if allowed else None
        results.append(
            release.as_dict()
            | ({"signature": str(signed)} if signed else {})
            | ({"signed_by": signer} if signer else {})
        )
        lines.append(f"{release.build:<14} {release.digest[:12]}  {release.path}")
        lines += [f"{'':<14} signed: {signed}"] if signed else []
        lines += [f"{'':<14} signed by {signer}"] if signer else []
        lines += [f"{'':<14} harmful: {r['patch']}; accepted: {r['reason']}" for r in release.accepted_risks]
    return Outcome(
        {"releases": results},
        show=lambda out: out.print("\n".join(lines)),
    )
