# SPDX-License-Identifier: Apache-2.0
"""``rackwell patches``: the catalogue, and its patches held against the real wheels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rackwell.cli.command import HERE, JsonOption, SiteOption, execute

if TYPE_CHECKING:
    from rackwell.build.catalogue.entry import Entry
    from rackwell.build.catalogue.table import Table
    from rackwell.build.catalogue.wheels import Cache
    from rackwell.cli.output import Outcome, Terminal
    from rackwell.errors import Problem

CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="DIR", envvar="RACKWELL_CACHE", help="Where wheels are kept; else in the user's cache."
    ),
]
ProjectOption = Annotated[str, typer.Option("--project", metavar="P", help="sglang or flashinfer-python.")]
VersionsOption = Annotated[
    list[str] | None,
    typer.Option("--version", metavar="V", help="Version to try; may be repeated; 'newest' asks the index."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("verify")(verify)
    group.command("new")(new)
    app.add_typer(group, name="patches", help="Patches: list, show, try on real wheels, make.")


def list_(site: SiteOption = HERE, as_json: JsonOption = False) -> None:
    """List the patches of the catalogue and of the site."""
    execute("patches", as_json, lambda _: _list(site))


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the patch, or its last part.")],
    version: Annotated[
        str, typer.Option("--version", metavar="V", help="What holds for this version, with the diff.")
    ] = "",
    site: SiteOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of one patch."""
    execute("patches", as_json, lambda _: _show(site, name, version))


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Patches; without one, all.")] = None,
    project: ProjectOption = "",
    version: VersionsOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Every version that the catalogue knows of.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables for a page.")] = False,
    site: SiteOption = HERE,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try patches on the real wheels and print a table patch x version.

    Exit code 1 when a patch says something of a version that is not so.
    """
    execute(
        "patches",
        as_json,
        lambda terminal: _verify(
            terminal, site, cache, names or [], project, version or [], everything=everything, markdown=markdown
        ),
    )


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the patch: PROJECT/NAME or NAME.")],
    project: ProjectOption,
    version: Annotated[str, typer.Option("--version", metavar="V", help="Version that the tree was taken from.")],
    tree: Annotated[
        Path, typer.Option("--from", metavar="TREE", help="The edited tree: an unpacked wheel, or a checkout.")
    ],
    summary: Annotated[str, typer.Option("--summary", metavar="TEXT", help="One line: what it changes.")] = "",
    in_catalogue: Annotated[
        bool, typer.Option("--catalogue", help="Put it in the catalogue of this checkout instead of in the site.")
    ] = False,
    site: SiteOption = HERE,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a patch from an edited source tree.

    It is proved to apply. A patch of that name gets a diff for one version more.
    """
    execute(
        "patches",
        as_json,
        lambda terminal: _new(terminal, site, cache, name, project, version, tree, summary, in_catalogue=in_catalogue),
    )


def _list(site: Path) -> Outcome:
    from rackwell import shipped
    from rackwell.build.catalogue import entry as entries
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode

    found, problems = entries.load_all(shipped.catalog(), site)
    head = ["patch", "status", "applies to", "upstream since", "on the engine's path", "summary"]
    rows = [
        [e.name, e.meta.status, _reach(e), e.meta.upstream_since or "-", _touches(e), e.meta.summary] for e in found
    ]
    return Outcome(
        {"action": "list", "patches": [_as_dict(entry) for entry in found]},
        problems,
        ExitCode.INVALID if problems else ExitCode.DONE,
        lambda out: tables.table(out, head, rows),
    )


def _show(site: Path, name: str, version: str) -> Outcome:
    from rackwell import shipped
    from rackwell.build.catalogue import entry as entries
    from rackwell.build.catalogue import wheels
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode, Problem, RackwellError

    entry = entries.find(name, shipped.catalog(), site)
    asked = wheels.check_version(version) if version else ""
    if asked == wheels.NEWEST:
        raise RackwellError(
            Problem("usage", "'newest' has no meaning here", "--version", "", "give a version"), ExitCode.INVALID
        )
    diff = ""
    if asked and (filename := entry.meta.diff_for(asked)):
        diff = (entry.folder / filename).read_text(encoding="utf-8", errors="replace")
    result = {"action": "show", "patches": [_as_dict(entry)], "version": asked or None, "diff": diff or None}
    return Outcome(result, show=lambda out: out.print(_described(entry, asked, diff)))


def _verify(
    terminal: Terminal,
    site: Path,
    cache: Path | None,
    names: Sequence[str],
    project: str,
    versions: Sequence[str],
    *,
    everything: bool,
    markdown: bool,
) -> Outcome:
    from rackwell import shipped
    from rackwell.build.catalogue import entry as entries
    from rackwell.build.catalogue import table as maker
    from rackwell.build.catalogue import wheels
    from rackwell.cli import tables
    from rackwell.cli.output import Outcome
    from rackwell.errors import ExitCode

    catalog = shipped.catalog()
    known = wheels.known_wheels(catalog)
    asked = list(dict.fromkeys(wheels.check_version(text) for text in versions))
    terminal.safety = "nothing was changed; what was fetched is kept"
    problems: list[Problem] = []
    chosen = [entries.find(name, catalog, site) for name in names]
    if not names:
        chosen, problems = entries.load_all(catalog, site)
    chosen = [entry for entry in chosen if project in {"", entry.meta.project}]
    order = list(known.shown)
    projects = sorted({e.meta.project for e in chosen}, key=lambda p: (order.index(p) if p in order else len(order), p))
    _refuse_vague(projects, project, asked)
    store = _cache(cache, known, terminal)
    made: list[Table] = []
    for name in projects:
        there = list(known.wheels.get(name, {})) if everything else known.shown.get(name, [])
        held = {wheel.version: wheel for wheel in (store.get(name, version) for version in asked or there)}
        mine = [entry for entry in chosen if entry.meta.project == name]
        made.append(maker.make_table(name, mine, list(held.values()), lambda text: terminal.line("controller", text)))
    problems = [*problems, *(problem for table in made for problem in table.contradictions())]

    def show(out: Any) -> None:
        for number, table in enumerate(made):
            if number:
                out.print()
            if markdown:
                out.print(table.markdown(), end="")
            else:
                tables.table(out, table.head, table.as_rows())

    return Outcome(
        {
            "action": "verify",
            "patches": [_as_dict(entry) for entry in chosen],
            "tables": [table.as_dict() for table in made],
        },
        problems,
        ExitCode.FAILED if problems else ExitCode.DONE,
        show,
    )


def _new(
    terminal: Terminal,
    site: Path,
    cache: Path | None,
    name: str,
    project: str,
    version: str,
    tree: Path,
    summary: str,
    *,
    in_catalogue: bool,
) -> Outcome:
    from rackwell import shipped
    from rackwell.build.catalogue import new as maker
    from rackwell.build.catalogue import wheels
    from rackwell.cli.output import Outcome

    catalog = shipped.catalog()
    short = maker.check_name(name, project)
    _refuse_no_project(project)
    _refuse_no_tree(tree)
    if in_catalogue:
        _refuse_installed()
        folder, shown = catalog / "patches" / project / short, f"{project}/{short}"
    else:
        _refuse_no_site(site)
        folder, shown = site / "builds" / "patches" / short, f"./patches/{short}"
    store = _cache(cache, wheels.known_wheels(catalog), terminal)
    held = store.get(project, wheels.check_version(version))
    terminal.line("controller", f"compare {tree} with {held.filename}, sha256 {held.sha256[:12]}")
    own = f"{project}/{short}" if in_catalogue else short
    made = maker.make(held, tree, folder, own, summary or f"changes made in {tree.name}")
    size = ", ".join(f"{path} ({hunks} hunk{'' if hunks == 1 else 's'})" for path, hunks in made.changed.items())
    lines = [
        f"{shown} {'has a diff for one version more' if made.added_to else 'is made'}: {made.diff}",
        f"it changes {size}",
        f"it applies to {project} {held.version} without fuzz and gives the edited files, byte for byte",
        *([f"not taken: {made.ignored} files that the wheel does not have"] if made.ignored else []),
        f"say what it is for in {made.entry.document.path}, then ask for it in a build: `patches: [{shown}]`",
    ]
    return Outcome(
        {
            "action": "new",
            "patches": [_as_dict(made.entry)],
            "diff": str(made.diff),
            "files": made.changed,
            "ignored": made.ignored,
            "added_to": made.added_to,
            "wheel": {"version": held.version, "filename": held.filename, "sha256": held.sha256},
        },
        show=lambda out: out.print("\n".join(lines)),
    )


def _cache(folder: Path | None, known: Any, terminal: Terminal) -> Cache:
    from rackwell.build.catalogue import wheels

    def tell(text: str) -> None:
        told = terminal.detail if text.startswith(" ") else terminal.line
        told("controller", text.strip())

    return wheels.Cache(folder or wheels.default_cache(), known, tell)


def _refuse_vague(projects: Sequence[str], project: str, versions: Sequence[str]) -> None:
    """A version is one of a project."""
    if project and not projects:
        _refuse("usage", f"there is no patch of '{project}'", "--project", "see: rackwell patches list")
    if versions and len(projects) > 1:
        what = f"--version could be of {' or of '.join(projects)}"
        _refuse("usage", what, "--version", f"add --project {projects[0]}")


def _refuse_no_project(project: str) -> None:
    from rackwell import shipped
    from rackwell.build.catalogue import wheels

    known = wheels.known_wheels(shipped.catalog()).wheels
    if project not in known:
        _refuse("usage", f"'{project}' is no project that is patched", "--project", f"there is: {', '.join(known)}")


def _refuse_no_tree(tree: Path) -> None:
    if not tree.is_dir():
        _refuse("not-a-tree", "the edited tree is not there", str(tree), "give the folder of the edited source tree")


def _refuse_no_site(site: Path) -> None:
    if not (site / "builds").is_dir():
        fix = "give one with -i SITE (rackwell init SITE makes one), or --catalogue"
        _refuse("not-a-site", "that is no site: it has no builds", str(site), fix)


def _refuse_installed() -> None:
    from rackwell import shipped

    if shipped.checkout() is None:
        fix = "leave out --catalogue to put it in the site, or run the rackwell of a checkout"
        _refuse("not-a-checkout", "the catalogue of an installed rackwell is not edited", str(shipped.catalog()), fix)


def _refuse(code: str, what: str, where: str, fix: str) -> None:
    from rackwell.errors import ExitCode, Problem, RackwellError

    raise RackwellError(Problem(code, what, where, "", fix), ExitCode.INVALID)


def _reach(entry: Entry) -> str:
    """From which to which version it applies, in short."""
    from rackwell.build.catalogue.ranges import VersionRange

    ranges = sorted((VersionRange.parse(text) for text in entry.meta.applies_to), key=lambda item: item.low)
    last = ranges[-1]
    if len(ranges) == 1 and last.high is None:
        return str(last)
    return f"{ranges[0].low} to {last}" if last.high is None else f"{ranges[0].low} to below {last.high}"


def _touches(entry: Entry) -> str:
    touches = entry.meta.touches_code_path
    return ("yes" if touches else "no") if isinstance(touches, bool) else "by version"


def _as_dict(entry: Entry) -> dict[str, Any]:
    return {"id": entry.name, "path": str(entry.folder), **entry.meta.model_dump(mode="json")}


def _described(entry: Entry, version: str, diff: str) -> str:
    """All of an entry, for people."""
    import textwrap

    meta = entry.meta
    lines = [f"{entry.name}: {meta.summary}", f"  status      {meta.status}"]

    def add(label: str, *texts: str) -> None:
        shown = [line for text in texts if text.strip() for line in textwrap.wrap(text.strip(), 100)]
        lines.extend(f"  {label if number == 0 else '':<11} {text}" for number, text in enumerate(shown))

    add("risk", meta.risk)
    add("why", meta.why)
    if meta.author is not None:
        add("author", f"{meta.author.who}: {meta.author.words}")
    add("applies to", *(f"{meta.project} {text}: {filename}" for text, filename in meta.applies_to.items()))
    add("upstream", f"since {meta.upstream_since}" if meta.upstream_since else "", meta.upstream)
    add("needs", *_needs(entry))
    if isinstance(meta.touches_code_path, bool):
        add("on the path", _touches(entry))
    else:
        add("on the path", *(f"{text}: {'yes' if yes else 'no'}" for text, yes in meta.touches_code_path.items()))
    add("evidence", *meta.evidence_list())
    add("measured", *(f"{m.setup}: {m.result}.{' ' if m.caveat else ''}{m.caveat}" for m in meta.measured))
    add("files", str(entry.folder))
    if version:
        lines += ["", _at_version(entry, version), *([diff.rstrip("\n")] if diff else [])]
    return "\n".join(lines)


def _needs(entry: Entry) -> list[str]:
    from rackwell.build.catalogue.flags import told

    meta = entry.meta
    needs = meta.needs_flags
    if isinstance(needs, dict):
        lines = [told(flag, value) for flag, value in needs.items()]
    else:
        lines = [f"{told(flag, value)} ({need.versions})" for need in needs for flag, value in need.flags.items()]
    lines += [f"not {told(flag, value)}" for flag, value in meta.hindering_flags.items()]
    return lines + [f"the patch {name}" for name in meta.needs_patches]


def _at_version(entry: Entry, version: str) -> str:
    meta = entry.meta
    if meta.is_upstream(version):
        return f"{meta.project} {version} has the change"
    filename = meta.diff_for(version)
    if filename is None:
        return f"it does not say that it applies to {meta.project} {version}"
    path = "is" if meta.touches_at(version) else "is not"
    return f"{meta.project} {version}: {filename}; what it changes {path} on the engine's path"
