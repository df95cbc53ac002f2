# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinywheels
from buildsite import Site
from gitserver import PROJECT, Server, cut_after, git, other_python, serving
from test_build_release import tree

from rackwell.build import gitbuild, gitcommand, gitmirror, giturl, load_build, lock
from rackwell.errors import ExitCode, Problem, RackwellError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "served") as found:
        found.create("lib")
        found.commit("lib", {"lib.h": "#define LIB 1\n"})
        folder = found.create("sglang")
        git(folder, "submodule", "--quiet", "add", "../lib", "python/sglang/lib")
        git(folder, "config", "--file", ".gitmodules", "submodule.python/sglang/lib.url", "../lib")
        (folder / "python/sglang/link.py").symlink_to("runner.py")
        found.commit("sglang", PROJECT)
        yield found


def head(server: Server, name: str = "sglang") -> str:
    return git(server.root / name, "rev-parse", "HEAD")


def build_text(server: Server, more: str = "", commit: str = "", patches: str = "[]", url: str = "") -> str:
    return f"""\
python: "3.11"
sources:
  sglang: {{git: "{url or server.url("sglang")}", commit: "{commit or head(server)}", subdirectory: python{more}}}
patches: {patches}
"""


def refused(site: Site, text: str, **options: object) -> Problem:
    """The one problem with which a build of `text` ends; nothing half done is left."""
    before = tree(site.state / "releases") if (site.state / "releases").exists() else {}
    with pytest.raises(RackwellError) as caught:
        site.make(site.write(text), **options)
    (problem,) = caught.value.problems
    assert problem.what
    assert problem.where.startswith(str(site.folder)), problem
    assert problem.why
    assert problem.fix
    assert (tree(site.state / "releases") if (site.state / "releases").exists() else {}) == before
    assert not list((site.state / "tmp").iterdir()) if (site.state / "tmp").exists() else True
    return problem


def mirror_of(site: Site, url: str) -> Path:
    return site.state / "git" / f"{hashlib.sha256(url.encode()).hexdigest()}.git"


def test_a_git_source_is_built_with_its_submodule(site: Site, server: Server) -> None:
    release = site.make(site.write(build_text(server)))
    (source,) = release.manifest["sources"]
    folder = server.root / "sglang"
    assert (source["project"], source["version"], source["wheel"]) == (
        "sglang",
        "0.5.11",
        "sglang-0.5.11-py3-none-any.whl",
    )
    assert source["git"] == {
        "url": server.url("sglang"),
        "commit": head(server),
        "tree": git(folder, "rev-parse", "HEAD^{tree}"),
        "subdirectory": "python",
        "submodules": [
            {
                "path": "python/sglang/lib",
                "commit": head(server, "lib"),
                "tree": git(server.root / "lib", "rev-parse", "HEAD^{tree}"),
            }
        ],
    }
    with zipfile.ZipFile(site.state / "blobs/sha256" / source["sha256"]) as wheel:
        assert wheel.read("sglang/lib/lib.h") == b"#define LIB 1\n"
        # the files are the commit's, whatever its .gitattributes say
        assert wheel.read("sglang/lines.py") == b"one\ntwo\n"
        assert wheel.read("sglang/subst.py") == b"COMMIT = '$Format:%H$'\n"
        assert wheel.read("sglang/link.py") == wheel.read("sglang/runner.py")
        assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert [wheel["project"] for wheel in release.manifest["wheels"]] == ["helper", "leaf", "sglang"]
    text = (site.folder / "builds/lab.lock").read_text()
    assert "://" not in text, "the lock names no place"
    found = lock.read_lock(site.folder / "builds/lab.lock")
    assert found is not None
    assert found.text() == text
    assert found.git[0].tree == source["git"]["tree"]
    mirror = mirror_of(site, server.url("sglang"))
    assert git(mirror, "rev-list", "--count", head(server)) == "1", "exactly the commit"
    assert list((site.state / "tmp").iterdir()) == []


def test_without_submodules_their_places_are_empty(site: Site, server: Server) -> None:
    release = site.make(site.write(build_text(server, ", submodules: false")))
    (source,) = release.manifest["sources"]
    assert source["git"]["submodules"] == []
    with zipfile.ZipFile(site.state / "blobs/sha256" / source["sha256"]) as wheel:
        assert not [name for name in wheel.namelist() if "/lib/" in name]
    assert not mirror_of(site, server.url("lib")).exists()


def test_a_second_run_asks_nobody(site: Site, server: Server) -> None:
    path = site.write(build_text(server))
    first = site.make(path)
    server.stop()
    before = tree(site.folder)
    second = site.make(path)
    assert (second.digest, second.changed) == (first.digest, False)
    assert tree(site.folder) == before


def test_the_mirror_serves_without_a_network(site: Site, server: Server) -> None:
    path = site.write(build_text(server))
    first = site.make(path)
    (source,) = first.manifest["sources"]
    (site.state / "blobs/sha256" / source["sha256"]).unlink()
    server.stop()
    again = site.make(path)
    assert again.digest == first.digest
    assert "the git sources came out as locked" in site.said


def test_another_place_and_another_clone_give_the_same_release(site: Site, server: Server, tmp_path: Path) -> None:
    first = site.make(site.write(build_text(server)))
    other = Site(tmp_path / "a much longer name" / "elsewhere" / "site", site.catalog, site.index)
    # the other one has the lock, as one who cloned the site; the third has nothing
    other.write(build_text(server))
    shutil.copy(site.folder / "builds/lab.lock", other.folder / "builds/lab.lock")
    umask = os.umask(0o077)
    try:
        second = other.make(other.folder / "builds/lab.yml")
        third_site = Site(tmp_path / "third", site.catalog, site.index)
        third = third_site.make(third_site.write(build_text(server)))
    finally:
        os.umask(umask)
    assert first.digest == second.digest == third.digest
    locks = [(s.folder / "builds/lab.lock").read_bytes() for s in (site, other, third_site)]
    assert locks[0] == locks[1] == locks[2]


def test_the_builds_python_does_not_matter(site: Site, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend runs in another Python, with another zlib it may be, and the lock's wheel comes out."""
    python = other_python()
    if python is None:
        pytest.skip("there is no second Python on this machine")
    first = site.make(site.write(build_text(server)))
    monkeypatch.setattr(gitbuild, "_PYTHON", python)
    (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
    assert site.make(site.write(build_text(server))).digest == first.digest


def test_another_python_gives_the_same_release(site: Site, server: Server, tmp_path: Path) -> None:
    """In a Python of another version, where there is one that has what rackwell needs."""
    python = os.environ.get("RACKWELL_OTHER_PYTHON")
    if not python:
        pytest.skip("RACKWELL_OTHER_PYTHON names no other Python with rackwell's requirements")
    first = site.make(site.write(build_text(server)))
    other = Site(tmp_path / "other", site.catalog, site.index)
    path = other.write(build_text(server))
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3]);"
        "from rackwell.build import load_build, make_release;"
        "print(sys.version_info[:2], file=sys.stderr);"
        "print(make_release(load_build(Path(sys.argv[1])), site_state=Path(sys.argv[1]).parents[1] / '.rackwell',"
        " catalog=Path(sys.argv[2]), progress=lambda text: None).digest)"
    )
    source = str(Path(gitcommand.__file__).parents[2])
    done = subprocess.run(
        [python, "-c", script, str(path), str(site.catalog), source], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"{sys.version_info[:2]}" not in done.stderr
    assert done.stdout.strip() == first.digest
    assert (other.folder / "builds/lab.lock").read_bytes() == (site.folder / "builds/lab.lock").read_bytes()


def test_the_declared_version_is_the_wheels(site: Site, server: Server) -> None:
    release = site.make(site.write(build_text(server, ", version: 0.5.11.post7")))
    assert release.manifest["sources"][0]["version"] == "0.5.11.post7"


def test_a_project_that_disagrees_on_its_version(site: Site, server: Server) -> None:
    careless = PROJECT["python/careless.py"].replace('os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION") or ', "")
    server.commit("sglang", {"python/careless.py": careless})
    problem = refused(site, build_text(server, ", version: 0.5.12"))
    assert problem.code == "git-version-differs"
    assert "0.5.11" in problem.what
    assert "0.5.12" in problem.what


def test_another_project(site: Site, server: Server) -> None:
    text = build_text(server).replace("  sglang:", "  flashinfer-python:")
    problem = refused(site, text)
    assert problem.code == "git-project-differs"
    assert problem.where.endswith("lab.yml:3")


def test_patches_apply_to_what_was_built(site: Site, server: Server) -> None:
    entry = site.catalog / "patches/sglang/example"
    (entry / "0.5.11.patch").write_text(tinywheels.PATCH)
    (entry / "patch.yml").write_text(tinywheels.PATCH_YML.replace("0.5.9", "0.5.11"))
    text = build_text(server, ", version: 0.5.11", patches="[sglang/example]")
    release = site.make(site.write(text))
    wheel = release.manifest["wheels"][-1]
    with zipfile.ZipFile(site.state / "blobs/sha256" / wheel["sha256"]) as archive:
        assert b"line twenty-one\n" in archive.read("sglang/runner.py")
    assert wheel["sha256"] != release.manifest["sources"][0]["sha256"]
    problem = refused(site, build_text(server, patches="[sglang/example]"))
    assert problem.code == "patch-needs-version"
    assert problem.where.endswith("lab.yml:4")


def test_what_builds_it_is_locked_by_hash(site: Site, server: Server) -> None:
    pyproject = PROJECT["python/pyproject.toml"].replace("requires = []", 'requires = ["leaf"]')
    careless = PROJECT["python/careless.py"].replace("REQUIRES = []", 'REQUIRES = ["helper-tool"]')
    server.commit("sglang", {"python/pyproject.toml": pyproject, "python/careless.py": careless})
    tool = tinywheels.make_wheel(site.index, "helper-tool", "1.0", {"helper_tool.py": "VALUE = 10\n"})
    newer = None
    try:
        path = site.write(build_text(server))
        first = site.make(path)
        text = (site.folder / "builds/lab.lock").read_text()
        assert "#   with helper-tool==1.0 --hash=sha256:" in text
        assert "#   with leaf==3.0 --hash=sha256:" in text
        # the newest tool is another; the lock's is taken all the same
        newer = tinywheels.make_wheel(site.index, "helper-tool", "1.1", {"helper_tool.py": "VALUE = 11\n"})
        (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
        assert site.make(path).digest == first.digest
        relocked = site.make(path, relock=True)
        with zipfile.ZipFile(site.state / "blobs/sha256" / relocked.manifest["sources"][0]["sha256"]) as wheel:
            assert wheel.read("sglang/tool.txt") == b"11"
    finally:
        tool.unlink()
        if newer:
            newer.unlink()


def test_the_build_sees_no_network_and_no_environment(
    site: Site, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the operator")
    git(site.folder if site.folder.exists() else site.folder.parent, "init", "--quiet")
    spy = (
        "import json, os, socket, subprocess\n"
        "def seen():\n"
        "    try:\n"
        f"        socket.create_connection(('127.0.0.1', {server.port}), 5).close()\n"
        "        net = True\n"
        "    except OSError:\n"
        "        net = False\n"
        "    git = subprocess.run(['git', 'rev-parse', '--show-toplevel'], capture_output=True).returncode\n"
        "    return json.dumps({'net': net, 'git': git, 'names': sorted(os.environ)})\n"
    )
    careless = (
        PROJECT["python/careless.py"]
        .replace(
            'files[info + "/RECORD"] =',
            'import spy\n    files["sglang/seen.json"] = spy.seen().encode()\n    files[info + "/RECORD"] =',
        )
        .replace("rows = [", "rows = ['sglang/seen.json,,\\n'] + [")
    )
    server.commit("sglang", {"python/spy.py": spy, "python/careless.py": careless})
    release = site.make(site.write(build_text(server)))
    with zipfile.ZipFile(site.state / "blobs/sha256" / release.manifest["sources"][0]["sha256"]) as wheel:
        seen = json.loads(wheel.read("sglang/seen.json"))
    assert "SECRET" not in seen["names"]
    assert not [name for name in seen["names"] if name.startswith(("PIP_", "UV_", "GIT_"))]
    assert seen["git"] != 0, "no repository above the tree is found, not even the site's"
    assert seen["net"] is not gitbuild.network_is_cut()


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        ("0123abc", "a short commit id"),
        ("main", "a branch or a tag can move"),
        ("v0.5.11", "a branch or a tag can move"),
        ("refs/tags/v0.5.11", "a branch or a tag can move"),
        ("HEAD", "a branch or a tag can move"),
        ("A" * 40, "40 hexadecimal digits"),
        ("--upload-pack=touch", "40 hexadecimal digits"),
    ],
)
def test_only_a_whole_commit_is_pinned(site: Site, server: Server, commit: str, words: str) -> None:
    problem = refused(site, build_text(server, commit=commit))
    assert problem.code == "wrong-value"
    assert words in problem.why
    assert problem.where.endswith("lab.yml:3")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.org/x.git", "begins with https://"),
        ("ext::sh -c touch% x", "without spaces"),
        ("ext::sh", "begins with https://"),
        ("git@example.org:x/y.git", "write ssh://git@example.org/x/y.git"),
        ("--upload-pack=touch", "begins with https://"),
        ("ssh://-oProxyCommand=touch/x", "begins with a dash"),
        ("ssh://-o@host/x", "begins with a dash"),
        ("https://user:secret@example.org/x.git", "credential"),
        ("https://token@example.org/x.git", "credential"),
        ("https://example.org/x.git?y", "query"),
        ("file://host/x.git", "file:///path"),
        ("https:///x.git", "names no host"),
        ("https://example.org/", "names no repository"),
        ("https://example.org:port/x", "URL"),
        ("/srv/x.git", "begins with https://"),
    ],
)
def test_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"must|names") as caught:
        giturl.checked(url)
    assert words in str(caught.value)


def test_urls_that_are_taken() -> None:
    for url in (
        "https://example.org/a/b.git",
        "ssh://git@example.org:22/a",
        "git://h/a",
        "file:///srv/a b".replace(" ", ""),
    ):
        assert giturl.checked(url) == url
    assert giturl.resolved("../b.git", "https://h/x/a.git") == "https://h/x/b.git"
    assert giturl.resolved("../../y/b", "ssh://git@h/x/a/") == "ssh://git@h/y/b"
    with pytest.raises(ValueError, match="begins with"):
        giturl.resolved("ext::sh", "https://h/a")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("{git: 'git://h/a'}", "needs `commit`"),
        ("{version: 0.5.9, commit: '" + "a" * 40 + "'}", "give `git: URL` as well"),
        ("{}", "needs `version`"),
        ("{git: 'git://h/a', commit: '" + "a" * 40 + "', sha256: '" + "b" * 64 + "'}", "pinned by its commit"),
        ("{git: 'git://h/a', commit: '" + "a" * 40 + "', subdirectory: ../x}", "inside the repository"),
        ("{git: 'git://h/a', commit: '" + "a" * 40 + "', tag: --all}", "tag's name"),
        ("{git: 'git://h/a', commit: '" + "a" * 40 + "', tag: 'v1*'}", "tag's name"),
    ],
)
def test_a_source_is_of_one_kind(site: Site, keys: str, words: str) -> None:
    with pytest.raises(RackwellError) as caught:
        load_build(site.write(f'python: "3.11"\nsources:\n  sglang: {keys}\n'))
    assert caught.value.exit_code == ExitCode.INVALID
    assert words in caught.value.problems[0].why


def test_a_commit_that_the_repository_does_not_have(site: Site, server: Server) -> None:
    problem = refused(site, build_text(server, commit="deadbeef" * 5))
    assert problem.code == "git-commit-missing"
    assert problem.where.endswith("lab.yml:3")


def test_a_commit_that_no_branch_leads_to_any_more(site: Site, server: Server) -> None:
    """It is what was pinned: where the server still has it, it is taken; where not, that is told."""
    text = build_text(server)
    git(server.root / "sglang", "checkout", "--quiet", "--orphan", "new")
    server.commit("sglang", {"other": "x"})
    git(server.root / "sglang", "branch", "--quiet", "-D", "main")
    first = site.make(site.write(text))
    assert first.manifest["sources"][0]["git"]["commit"] in text
    git(server.root / "sglang", "reflog", "expire", "--expire=now", "--all")
    git(server.root / "sglang", "gc", "--quiet", "--prune=now")
    shutil.rmtree(site.state / "git")
    assert refused(site, text, relock=True).code == "git-commit-missing"
    assert site.make(site.write(text)).digest == first.digest, "what was built before stays"


def test_a_server_that_gives_branches_only(site: Site, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gitcommand._SETTINGS, "protocol.version", "0")
    text = build_text(server)
    server.commit("sglang", {"later": "x"})
    release = site.make(site.write(text))
    assert release.manifest["sources"][0]["git"]["commit"] in text


def test_a_tag_that_has_moved(site: Site, server: Server) -> None:
    folder = server.root / "sglang"
    git(folder, "tag", "--annotate", "--message", "release", "v0.5.11")
    text = build_text(server, ", tag: v0.5.11")
    first = site.make(site.write(text))
    server.commit("sglang", {"python/sglang/more.py": "x = 1\n"})
    git(folder, "tag", "--force", "v0.5.11")
    assert site.make(site.write(text)).digest == first.digest, "the lock stands, and nobody is asked"
    problem = refused(site, text, relock=True)
    assert problem.code == "git-tag-moved"
    assert head(server) in problem.why
    # one who has nothing yet is told as well
    (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
    shutil.rmtree(site.state / "git")
    assert refused(site, text).code == "git-tag-moved"
    git(folder, "tag", "--delete", "v0.5.11")
    assert "no such tag" in refused(site, text).why


def test_a_tree_that_is_not_the_locked_one(site: Site, server: Server) -> None:
    text = build_text(server)
    first = site.make(site.write(text))
    (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
    path = site.folder / "builds/lab.lock"
    good = path.read_text()
    inner = first.manifest["sources"][0]["git"]["submodules"][0]["tree"]
    for old in (first.manifest["sources"][0]["git"]["tree"], inner):
        path.write_text(good.replace(f"tree:{old}", f"tree:{'0' * 40}"))
        problem = refused(site, text)
        assert problem.code == "git-tree-differs"
        assert old in problem.why or "python/sglang/lib" in problem.why
    path.write_text(good.replace(first.manifest["sources"][0]["sha256"], "0" * 64))
    problem = refused(site, text)
    assert problem.code == "git-build-differs"
    assert "0" * 64 in problem.why
    path.write_text(good.replace("# git sglang", "# git sglang!"))
    with pytest.raises(RackwellError) as caught:
        site.make(site.write(text))
    assert caught.value.problems[0].code == "lock-damaged"


def test_no_network(site: Site, server: Server) -> None:
    text = build_text(server)
    server.stop()
    problem = refused(site, text)
    assert problem.code == "git-unreachable"
    assert "Connection refused" in problem.why
    server.start()
    site.make(site.write(text))


def test_a_submodule_that_cannot_be_had(site: Site, server: Server) -> None:
    (server.root / "lib").rename(server.root / "gone")
    problem = refused(site, build_text(server))
    assert problem.code == "git-unreachable"
    assert problem.what.startswith("submodule python/sglang/lib: ")


@pytest.mark.parametrize("url", ["ext::sh -c 'touch /tmp/x'", "http://127.0.0.1/x.git", "--upload-pack=x"])
def test_a_submodule_with_a_dangerous_url(site: Site, server: Server, url: str) -> None:
    git(server.root / "sglang", "config", "--file", ".gitmodules", "submodule.python/sglang/lib.url", url)
    server.commit("sglang", {})
    problem = refused(site, build_text(server))
    assert problem.code == "git-submodule-unknown"
    assert "python/sglang/lib" in problem.what


def test_a_submodule_without_an_address(site: Site, server: Server) -> None:
    git(server.root / "sglang", "rm", "--quiet", "--cached", ".gitmodules")
    (server.root / "sglang/.gitmodules").unlink()
    server.commit("sglang", {})
    assert refused(site, build_text(server)).code == "git-submodule-unknown"


def test_a_link_that_leads_out(site: Site, server: Server) -> None:
    (server.root / "sglang/python/sglang/out.py").symlink_to("../../../etc/passwd")
    server.commit("sglang", {})
    problem = refused(site, build_text(server))
    assert problem.code == "git-tree-unsafe"
    assert "out.py" in problem.why


def damage(mirror: Path) -> None:
    """Flip a bit in the middle of the pack."""
    (pack,) = mirror.glob("objects/pack/*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0x10
    pack.chmod(0o644)
    pack.write_bytes(data)


def test_a_damaged_mirror_is_fetched_again(site: Site, server: Server) -> None:
    text = build_text(server)
    first = site.make(site.write(text))
    wheel = site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]
    mirror = mirror_of(site, server.url("sglang"))
    wheel.unlink()
    damage(mirror)
    assert site.make(site.write(text)).digest == first.digest
    assert any("is damaged" in line for line in site.said)
    wheel.unlink()
    damage(mirror)
    server.stop()
    problem = refused(site, text)
    assert problem.code == "git-unreachable"
    assert problem.why.startswith("the mirror here was damaged")
    server.start()
    assert site.make(site.write(text)).digest == first.digest


def test_every_bit_of_an_object_counts(site: Site, server: Server) -> None:
    """Loose objects whose content is whole for git's reader, but not what their names say."""
    text = build_text(server)
    first = site.make(site.write(text))
    mirror = mirror_of(site, server.url("sglang"))
    blob = git(server.root / "sglang", "rev-parse", "HEAD:python/sglang/runner.py")
    (pack,) = mirror.glob("objects/pack/*.pack")
    moved = mirror / "moved.pack"
    pack.rename(moved)
    for index in mirror.glob("objects/pack/*"):
        index.unlink()
    with moved.open("rb") as stream:
        subprocess.run(["git", f"--git-dir={mirror}", "unpack-objects", "-q"], stdin=stream, check=True)
    other = git(server.root / "sglang", "rev-parse", "HEAD:python/sglang/lines.py")
    loose = mirror / "objects" / blob[:2] / blob[2:]
    loose.unlink()
    shutil.copy(mirror / "objects" / other[:2] / other[2:], loose)
    (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
    assert site.make(site.write(text)).digest == first.digest
    assert any("is damaged" in line for line in site.said)


def test_a_fetch_that_is_cut_off(site: Site, server: Server) -> None:
    """At many a place: what came is never taken for the whole, and the next run brings it."""
    server.commit("sglang", {"python/sglang/noise.bin": random.Random(1).randbytes(300_000).hex()})
    for count in (0, 100, 1000, 50_000, 200_000):
        with cut_after(server, count) as port:
            url = f"git://127.0.0.1:{port}/sglang"
            problem = refused(site, build_text(server, ", submodules: false", url=url))
            assert problem.code in {"git-incomplete", "git-unreachable"}, problem
            if count >= 50_000:
                assert problem.code == "git-incomplete", problem
            # the same mirror, and now the server is whole
            mirror = mirror_of(site, url)
            git(mirror.parent, "config", "--file", str(mirror / "config"), f"url.{server.url('sglang')}.insteadOf", url)
            release = site.make(site.write(build_text(server, ", submodules: false", url=url)))
            assert release.manifest["sources"][0]["git"]["commit"] == head(server)
            assert not list(mirror.rglob("tmp_*"))
            (site.state / "blobs/sha256" / release.manifest["sources"][0]["sha256"]).unlink()


def test_a_fetch_that_is_killed(site: Site, server: Server) -> None:
    """rackwell is killed while git waits for a server that says nothing; the next run goes on."""
    server.stop()
    path = site.write(build_text(server))
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", server.port))
        silent.listen()
        script = (
            "import sys; from pathlib import Path; from rackwell.build import load_build, make_release;"
            "make_release(load_build(Path(sys.argv[1])), site_state=Path(sys.argv[2]), catalog=Path(sys.argv[3]),"
            " progress=lambda text: print(text, flush=True))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(site.state), str(site.catalog)],
            stdout=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent.accept()
        mirror = mirror_of(site, server.url("sglang"))
        assert mirror.is_dir()
        # what git leaves when it dies at a bad moment
        (mirror / "shallow.lock").touch()
        (mirror / "objects/pack/tmp_pack_xyz").write_bytes(b"half")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        assert not (site.state / "releases").exists()
        # the git that it started holds the mirror until the server lets go
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gitmirror, "_WAIT_S", 0.2)
            assert refused(site, build_text(server)).code == "git-mirror-busy"
        connection.close()
    server.start()
    release = site.make(path)
    assert not (mirror / "objects/pack/tmp_pack_xyz").exists()
    assert release.manifest["sources"][0]["git"]["commit"] == head(server)
    assert list((site.state / "tmp").iterdir()) == []


def test_two_runs_do_not_meet_in_a_mirror(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gitmirror, "_WAIT_S", 0.3)
    one, two = (gitmirror.Mirror(site.state, "git://127.0.0.1/x", "lab.yml:3") for _ in range(2))
    with one._locked(), pytest.raises(RackwellError) as caught, two._locked():
        pass
    assert caught.value.problems[0].code == "git-mirror-busy"


def test_a_server_that_hangs_is_given_up(site: Site, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.stop()
    monkeypatch.setattr(gitcommand, "FETCH_S", 1)
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", server.port))
        silent.listen()
        problem = refused(site, build_text(server))
    assert problem.code == "timed-out"


def test_a_build_that_fails_says_why(site: Site, server: Server) -> None:
    careless = PROJECT["python/careless.py"] + "\nraise RuntimeError('no compiler for you')\n"
    server.commit("sglang", {"python/careless.py": careless})
    problem = refused(site, build_text(server))
    assert problem.code == "git-build-failed"
    assert "no compiler for you" in problem.why
    assert (
        refused(site, build_text(server).replace("subdirectory: python", "subdirectory: docs")).code == "git-no-project"
    )


def test_a_wheel_for_one_platform_is_refused(site: Site, server: Server) -> None:
    careless = PROJECT["python/careless.py"].replace("-py3-none-any.whl", "-cp311-cp311-linux_x86_64.whl")
    server.commit("sglang", {"python/careless.py": careless})
    assert refused(site, build_text(server)).code == "git-build-not-pure"


def test_hooks_and_settings_of_the_environment_do_not_count(
    site: Site, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-checkout", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (hooks / name).chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n")
    site.make(site.write(build_text(server)))
    assert not (tmp_path / "ran").exists()


def test_git_is_missing(site: Site, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(site.folder))
    problem = refused(site, build_text(server))
    assert problem.code == "git-missing"


def test_tools_that_are_not_for_every_python_are_locked_for_each(site: Site, server: Server) -> None:
    pyproject = PROJECT["python/pyproject.toml"].replace(
        "requires = []", 'requires = ["helper-tool", "leaf; python_version >= \'3.13\'"]'
    )
    server.commit("sglang", {"python/pyproject.toml": pyproject})
    tools = [
        tinywheels.make_wheel(
            site.index,
            "helper-tool",
            "1.0",
            {"helper_tool.py": "VALUE = 1\n"},
            tag=f"cp3{minor}-cp3{minor}-manylinux_2_28_x86_64",
        )
        for minor in (11, 12, 13, 14)
    ]
    try:
        path = site.write(build_text(server))
        first = site.make(path)
        found = lock.read_lock(site.folder / "builds/lab.lock")
        assert found is not None
        names = [tool.filename for tool in found.git[0].tools]
        assert [name for name in names if name.startswith("helper_tool")] == [tool.name for tool in tools]
        assert "leaf-3.0-py3-none-any.whl" in names, "another Python needs it"
        kept = {tool.filename for tool in gitbuild.fitting(found.git[0].tools)}
        assert {name for name in kept if name.startswith("helper_tool")} == {
            f"helper_tool-1.0-cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-manylinux_2_28_x86_64.whl"
        }
        text = (site.folder / "builds/lab.lock").read_text()
        mine = f"-cp3{sys.version_info[1]}-"
        without = "".join(line for line in text.splitlines(True) if not ("helper_tool" in line and mine in line))
        (site.folder / "builds/lab.lock").write_text(without)
        (site.state / "blobs/sha256" / first.manifest["sources"][0]["sha256"]).unlink()
        problem = refused(site, build_text(server))
        assert problem.code == "git-tools-unfit"
        assert "helper-tool" in problem.what
    finally:
        for tool in tools:
            tool.unlink()


@pytest.mark.index
def test_a_project_that_asks_git_for_its_version(
    site: Site, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As SGLang does: setuptools-scm, in a directory below the root. From the machine's own index."""
    for name in tinywheels.index_environment(site.index):
        monkeypatch.delenv(name, raising=False)
    pyproject = (
        '[build-system]\nrequires = ["setuptools>=61", "setuptools-scm>=8", "wheel"]\n'
        'build-backend = "setuptools.build_meta"\n'
        '[project]\nname = "sglang"\ndynamic = ["version"]\nlicense = "Apache-2.0"\n'
        '[tool.setuptools.packages.find]\ninclude = ["sglang*"]\n[tool.setuptools.package-data]\nsglang = ["**/*.h"]\n'
        '[tool.setuptools_scm]\nroot = ".."\nversion_file = "sglang/_version.py"\n'
    )
    server.commit("sglang", {"python/pyproject.toml": pyproject})
    text = build_text(server, ", version: 0.5.11.post1") + "dependencies: declared\n"
    try:
        first = site.make(site.write(text))
    except RackwellError as error:
        if error.problems[0].code == "resolve-failed":
            pytest.skip(f"the package index does not answer: {error.problems[0].why[:200]}")
        raise
    other = Site(tmp_path / "elsewhere" / "site", site.catalog, site.index)
    if python := other_python():
        monkeypatch.setattr(gitbuild, "_PYTHON", python)
    assert other.make(other.write(text)).digest == first.digest
    (source,) = first.manifest["sources"]
    assert source["wheel"] == "sglang-0.5.11.post1-py3-none-any.whl"
    with zipfile.ZipFile(site.state / "blobs/sha256" / source["sha256"]) as wheel:
        assert b"0.5.11.post1" in wheel.read("sglang/_version.py")
        assert "sglang/lib/lib.h" in wheel.namelist()
    shutil.rmtree(other.state)
    (other.folder / "builds/lab.lock").unlink()
    problem = refused(other, text.replace(", version: 0.5.11.post1", ""))
    assert problem.code == "git-build-failed"
    assert "version" in problem.why
    assert "`version`" in problem.fix
