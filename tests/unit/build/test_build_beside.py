# SPDX-License-Identifier: Apache-2.0
"""What lies beside a manifest: bill of materials, provenance, signature."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinywheels
from buildsite import BUILD, Site
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from gitserver import PROJECT, Server, git, serving
from packageurl import PackageURL

from rackwell.build import sbom, signature, wheelfile
from rackwell.errors import ExitCode, RackwellError


def bill(path: Path) -> dict[str, Any]:
    """The bill of the release at `path`; it holds against the official schema."""
    text = (path / sbom.NAME).read_text()
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert problem is None, problem
    found: dict[str, Any] = json.loads(text)
    references = [component["bom-ref"] for component in found["components"]]
    assert len(set(references)) == len(references)
    for item in found["dependencies"]:
        assert {item["ref"], *item["dependsOn"]} <= {*references, found["metadata"]["component"]["bom-ref"]}
    for component in found["components"]:
        parsed = PackageURL.from_string(component["purl"])
        assert (parsed.name, parsed.version) == (component["name"], component["version"])
        assert parsed.to_string() == component["purl"], "in the one form that counts"
    return found


def component(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [part for part in found["components"] if part["name"] == name]
    assert isinstance(one, dict)
    return one


def statement(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "provenance.json").read_text())
    return found


def test_the_bill_lists_every_wheel_and_what_was_done_to_it(locked: Site) -> None:
    release = locked.make(locked.write(BUILD))
    found = bill(release.path)
    wheels = {wheel["project"]: wheel for wheel in release.manifest["wheels"]}
    assert {part["name"] for part in found["components"]} == {*wheels, "uv"}
    for name, wheel in wheels.items():
        assert component(found, name)["hashes"] == [{"alg": "SHA-256", "content": wheel["sha256"]}]
    assert found["metadata"]["component"]["version"] == release.digest
    assert "timestamp" not in found["metadata"]
    assert component(found, "uv")["scope"] == "excluded"
    engine = component(found, "sglang")
    assert engine["purl"] == "pkg:pypi/sglang@0.5.9"
    (ancestor,) = engine["pedigree"]["ancestors"]
    assert ancestor["hashes"][0]["content"] == release.manifest["sources"][1]["sha256"]
    (patch,) = engine["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    assert patch["diff"]["text"]["content"] == tinywheels.PATCH
    assert patch["resolves"][0]["name"] == "sglang/example"
    assert "pedigree" not in component(found, "helper")
    needs = {item["ref"]: item["dependsOn"] for item in found["dependencies"]}
    assert needs["pkg:pypi/sglang@0.5.9"] == ["pkg:pypi/helper@1.2"]
    assert needs["pkg:pypi/helper@1.2"] == ["pkg:pypi/leaf@3.0"]


def test_the_bill_is_the_same_everywhere(site: Site, tmp_path: Path) -> None:
    first = site.make(site.write(BUILD))
    other = Site(tmp_path / "elsewhere" / "site", site.catalog, site.index)
    second = other.make(other.write(BUILD))
    assert (first.path / sbom.NAME).read_bytes() == (second.path / sbom.NAME).read_bytes()
    diff = site.catalog / "patches/sglang/example/0.5.9.patch"
    diff.write_text(diff.read_text().replace("twenty-one", "XXI"))
    third = site.make(site.write(BUILD))
    assert bill(third.path)["serialNumber"] != bill(first.path)["serialNumber"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("License-Expression: mit or apache-2.0\n", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: Apache-2.0\n", [{"expression": "Apache-2.0"}]),
        ("License: Some Licence of Our Own\n", [{"license": {"name": "Some Licence of Our Own"}}]),
        ("Classifier: License :: OSI Approved :: MIT License\n", [{"license": {"id": "MIT"}}]),
        (
            (
                "License: UNKNOWN\nClassifier: License :: OSI Approved :: BSD License\n"
                "Classifier: License :: OSI Approved :: MIT License\n"
            ),
            [{"license": {"name": "BSD License"}}, {"license": {"id": "MIT"}}],
        ),
        ("License: UNKNOWN\n", None),
        (f"License: {'x' * 300}\n        and more\n", [{"license": {"name": "x" * 100}}]),
        ("License: © 2026 José\n", [{"license": {"name": "© 2026 José"}}]),
    ],
)
def test_licences_come_from_the_metadata(locked: Site, fields: str, expected: object) -> None:
    folder = locked.folder / "wheels"
    info = "own-1.0+sm120.dist-info/METADATA"
    plain = tinywheels.make_wheel(folder, "own", "1.0+sm120", {"own.py": ""})
    with zipfile.ZipFile(plain) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files[info] += fields.encode()
    with zipfile.ZipFile(plain, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    release = locked.make(locked.write(BUILD + f"wheels: [{{path: ../wheels/{plain.name}}}]\n"))
    own = component(bill(release.path), "own")
    assert own.get("licenses") == expected
    digest = hashlib.sha256(plain.read_bytes()).hexdigest()
    assert own["purl"] == f"pkg:generic/own@1.0%2Bsm120?checksum=sha256:{digest}"


def test_provenance_says_who_when_and_with_what(locked: Site) -> None:
    git(locked.folder, "init", "--quiet")
    path = locked.write(BUILD)
    git(locked.folder, "add", "builds")
    git(locked.folder, "commit", "--quiet", "--message", "site")
    release = locked.make(path)
    found = statement(release.path)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in found["subject"]}
    assert subjects == {
        name: hashlib.sha256((release.path / name).read_bytes()).hexdigest() for name in ("manifest.json", sbom.NAME)
    }
    definition, details = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    outer = definition["externalParameters"]
    assert outer["site"] == {"commit": git(locked.folder, "rev-parse", "HEAD"), "changed": False}
    assert outer["build_file"]["digest"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    parts = {part["name"]: part for part in definition["resolvedDependencies"]}
    for wheel in release.manifest["wheels"]:
        if wheel["project"] != "sglang":
            assert parts[wheel["filename"]]["digest"]["sha256"] == wheel["sha256"]
    assert parts["sglang-0.5.9-py3-none-any.whl"]["annotations"]["as"] == "source"
    assert parts["0.5.9.patch"]["digest"]["sha256"] == release.manifest["patches"][0]["sha256"]
    assert re.fullmatch(r"urn:rackwell:builder:[^@]+@.+", details["builder"]["id"])
    assert {"rackwell", "python", "uv", "pip"} <= details["builder"]["version"].keys()
    begun, ended = details["metadata"]["startedOn"], details["metadata"]["finishedOn"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", begun)
    assert begun <= ended


def test_provenance_sees_a_site_that_was_changed(locked: Site) -> None:
    git(locked.folder, "init", "--quiet")
    path = locked.write(BUILD)
    git(locked.folder, "add", "builds")
    git(locked.folder, "commit", "--quiet", "--message", "site")
    path.write_text(BUILD + "# changed\n")
    assert statement(locked.make(path).path)["predicate"]["buildDefinition"]["externalParameters"]["site"]["changed"]


def test_a_site_in_no_repository(locked: Site) -> None:
    release = locked.make(locked.write(BUILD))
    assert statement(release.path)["predicate"]["buildDefinition"]["externalParameters"]["site"] is None


def test_what_lies_beside_is_mended_and_is_no_part_of_the_digest(locked: Site) -> None:
    path = locked.write(BUILD)
    first = locked.make(path)
    said = (first.path / "provenance.json").read_bytes()
    again = locked.make(path)
    assert not again.changed
    assert (first.path / "provenance.json").read_bytes() == said, "the one who made it stays the one who made it"
    good = (first.path / sbom.NAME).read_bytes()
    (first.path / sbom.NAME).write_bytes(good.replace(b"helper", b"hidden"))
    third = locked.make(path)
    assert (third.digest, third.changed) == (first.digest, True)
    assert (first.path / sbom.NAME).read_bytes() == good
    (first.path / "provenance.json").unlink()
    locked.make(path)
    assert statement(first.path)["subject"][0]["digest"]["sha256"] == first.digest
    (first.path / "requirements.txt").write_text("")
    assert locked.make(path).digest == first.digest
    assert (first.path / sbom.NAME).read_bytes() == good
    assert (first.path / "provenance.json").is_file()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "served") as found:
        found.create("sglang")
        found.commit("sglang", PROJECT)
        yield found


def test_a_git_source_in_bill_and_provenance(site: Site, server: Server) -> None:
    commit, url = git(server.root / "sglang", "rev-parse", "HEAD"), server.url("sglang")
    git(server.root / "sglang", "tag", "v0.5.11")
    source = f"{{git: '{url}', commit: '{commit}', tag: v0.5.11, subdirectory: python}}"
    release = site.make(site.write(f'python: "3.11"\nsources:\n  sglang: {source}\n'))
    engine = component(bill(release.path), "sglang")
    assert engine["purl"].startswith("pkg:pypi/sglang@0.5.11?vcs_url=")
    assert urllib.parse.unquote(engine["purl"]).endswith(f"vcs_url=git+{url}@{commit}")
    (reference,) = engine["externalReferences"]
    assert (reference["type"], reference["url"]) == ("vcs", url)
    assert commit in reference["comment"]
    assert engine["licenses"] == [{"expression": "MIT"}]
    (part,) = [
        part
        for part in statement(release.path)["predicate"]["buildDefinition"]["resolvedDependencies"]
        if part["annotations"]["as"] == "git source"
    ]
    assert part["uri"] == f"git+{url}@{commit}"
    assert part["digest"] == {"gitCommit": commit, "gitTree": release.manifest["sources"][0]["git"]["tree"]}
    assert part["annotations"]["tag"] == "v0.5.11"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mine` and `other`, and `locked` with a passphrase; `signers` knows mine, `strangers` the other alone."""
    folder = tmp_path_factory.mktemp("keys")
    for name, phrase in (("mine", ""), ("other", ""), ("locked", "secret")):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-C", name, "-f", str(folder / name)]
        subprocess.run(command, check=True)
    for file, name in (("signers", "mine"), ("strangers", "other")):
        public = (folder / f"{name}.pub").read_text()
        (folder / file).write_text(f'{name}@example.org namespaces="rackwell-release" {public}')
    return folder


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text('{"schema":"rackwell.release/1"}\n')
    return path


def refused(manifest: Path, allowed: Path) -> RackwellError:
    with pytest.raises(RackwellError) as caught:
        signature.verify(manifest, allowed)
    (problem,) = caught.value.problems
    assert problem.what
    assert problem.where
    assert problem.why
    assert problem.fix
    return caught.value


def test_a_signature_names_who_made_it(manifest: Path, keys: Path) -> None:
    made = signature.sign(manifest, keys / "mine")
    assert made == manifest.with_name("manifest.json.sig")
    assert signature.verify(manifest, keys / "signers") == "mine@example.org"
    before = made.stat().st_mtime_ns
    signature.sign(manifest, keys / "mine")
    assert made.stat().st_mtime_ns == before
    assert sorted(path.name for path in manifest.parent.iterdir()) == ["manifest.json", "manifest.json.sig"]


def test_signatures_that_do_not_hold(manifest: Path, keys: Path) -> None:
    assert refused(manifest, keys / "signers").problems[0].code == "unsigned"
    signature.sign(manifest, keys / "mine")
    error = refused(manifest, keys / "strangers")
    assert (error.problems[0].code, error.exit_code) == ("wrongly-signed", ExitCode.FAILED)
    text = manifest.read_text()
    manifest.write_text(text + " ")
    assert refused(manifest, keys / "signers").problems[0].code == "wrongly-signed"
    manifest.write_text(text)
    sig = manifest.with_name("manifest.json.sig")
    good = sig.read_text()
    sig.write_text("")
    assert refused(manifest, keys / "signers").problems[0].code == "wrongly-signed"
    sig.write_text(good)
    other = keys / "other-purpose"
    other.write_text((keys / "signers").read_text().replace("rackwell-release", "git"))
    assert refused(manifest, other).problems[0].code == "wrongly-signed"
    expired = keys / "expired"
    expired.write_text((keys / "signers").read_text().replace("namespaces=", 'valid-before="20200101",namespaces='))
    assert refused(manifest, expired).problems[0].code == "wrongly-signed"
    error = refused(manifest, keys / "nowhere")
    assert (error.problems[0].code, error.exit_code) == ("signers-missing", ExitCode.INVALID)


def test_a_signature_made_for_something_else_does_not_count(manifest: Path, keys: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(keys / "mine"), str(manifest)],
        check=True,
        capture_output=True,
    )
    assert refused(manifest, keys / "signers").problems[0].code == "wrongly-signed"


def test_a_key_that_cannot_sign(manifest: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for key, code, exit_code in (
        ("nowhere", "key-missing", ExitCode.INVALID),
        ("locked", "signing-failed", ExitCode.FAILED),
        ("signers", "signing-failed", ExitCode.FAILED),
    ):
        with pytest.raises(RackwellError) as caught:
            signature.sign(manifest, keys / key)
        assert (caught.value.problems[0].code, caught.value.exit_code) == (code, exit_code)
        assert caught.value.problems[0].why
    assert not manifest.with_name("manifest.json.sig").exists()


def test_without_ssh_keygen(manifest: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(manifest.parent))
    with pytest.raises(RackwellError) as caught:
        signature.sign(manifest, keys / "mine")
    assert caught.value.problems[0].code == "ssh-keygen-missing"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("comment", [b"", b"a comment at the end"])
def test_metadata_is_found_in_every_form_of_archive(tmp_path: Path, method: int, comment: bytes) -> None:
    path = tmp_path / "own-1.0-py3-none-any.whl"
    text = "Metadata-Version: 2.1\nName: own\nVersion: 1.0\nSummary: ein Rädchen\n"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("own/vendored/other-2.0.dist-info/METADATA", "Name: other\n")
        archive.writestr("own/PK\x01\x02.dist-info/METADATA.txt", "PK\x01\x02 .dist-info/METADATA\n")
        for count in range(300):
            archive.writestr(f"own/{count}.py", "x" * count)
        archive.writestr("own-1.0.dist-info/METADATA", text)
        archive.writestr("own-1.0.dist-info/RECORD", "")
        archive.comment = comment
    found = wheelfile.metadata_of(path)
    assert (found["Name"], found["Summary"]) == ("own", "ein Rädchen")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(wheelfile.MALFORMED):
        wheelfile.metadata_of(path)
