# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a release: CycloneDX 1.6, in JSON.

It follows from the manifest, the wheels and the patches alone. It names no time, and its serial number is made of the
release's digest, so that it comes out the same wherever it is made.
"""

from __future__ import annotations

import dataclasses
import email.message
import json
import urllib.parse
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rackwell.build.series import Patch
from rackwell.build.wheelfile import MALFORMED, marker_environment, metadata_of

NAME = "sbom.cdx.json"

_CLASSIFIED = "License :: OSI Approved :: "
# the classifiers that mean one licence of SPDX's list and no other
_SPDX = {
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "MIT No Attribution License (MIT-0)": "MIT-0",
}


@dataclasses.dataclass(frozen=True)
class Materials:
    """What a release is made of.

    Attributes:
        digest: the release's.
        blobs: the folder of wheels by SHA-256.
        patches: those of the build, in order.
        own: SHA-256 of the wheels that no index has: the operator's and rackwell's.
    """

    manifest: dict[str, Any]
    digest: str
    blobs: Path
    patches: Sequence[Patch]
    own: frozenset[str]


def render(materials: Materials) -> bytes:
    """The document."""
    manifest = materials.manifest
    sources = {source["project"]: source for source in manifest["sources"]}
    wheels = [*manifest["wheels"], {**manifest["uv"], "project": "uv", "version": _version(manifest["uv"]["filename"])}]
    headers = {wheel["sha256"]: _header(materials.blobs / wheel["sha256"]) for wheel in wheels}
    components, references = [], {}
    for wheel in wheels:
        source = sources.get(wheel["project"]) if wheel["sha256"] != manifest["uv"]["sha256"] else None
        component = _component(wheel, source, materials, headers[wheel["sha256"]])
        if wheel["sha256"] == manifest["uv"]["sha256"]:
            component |= {"bom-ref": f"installer:{component['purl']}", "scope": "excluded"}
        else:
            references[wheel["project"]] = component["bom-ref"]
        components.append(component)
    root = f"rackwell-release:{materials.digest}"
    needs = [{"ref": root, "dependsOn": sorted(references.values())}]
    for wheel in manifest["wheels"]:
        wanted = _requires(headers[wheel["sha256"]], manifest["python"])
        needs.append(
            {
                "ref": references[wheel["project"]],
                "dependsOn": sorted({references[n] for n in wanted if n in references}),
            }
        )
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"urn:rackwell:release:{materials.digest}").urn,
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "rackwell"}]},
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": manifest["name"],
                "version": materials.digest,
                "hashes": [{"alg": "SHA-256", "content": materials.digest}],
                "properties": [
                    {"name": "rackwell:platform", "value": manifest["platform"]},
                    {"name": "rackwell:python", "value": manifest["python"]},
                ],
            },
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
        "dependencies": sorted(needs, key=lambda item: str(item["ref"])),
    }
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def purl(project: str, version: str, **qualifiers: str) -> str:
    """The package URL of a project on the index; with `checksum`, of a wheel that is on none."""
    kind = "generic" if "checksum" in qualifiers else "pypi"
    pairs = "&".join(f"{name}={urllib.parse.quote(value, safe=':/')}" for name, value in sorted(qualifiers.items()))
    quoted = urllib.parse.quote(version, safe="")
    return f"pkg:{kind}/{canonicalize_name(project)}@{quoted}" + (f"?{pairs}" if pairs else "")


def _component(
    wheel: Mapping[str, Any], source: Mapping[str, Any] | None, materials: Materials, header: email.message.Message
) -> dict[str, Any]:
    git = source.get("git") if source else None
    if wheel["sha256"] in materials.own:
        place = purl(wheel["project"], wheel["version"], checksum=f"sha256:{wheel['sha256']}")
    elif git:
        place = purl(wheel["project"], wheel["version"], vcs_url=f"git+{git['url']}@{git['commit']}")
    else:
        place = purl(wheel["project"], wheel["version"])
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": place,
        "name": wheel["project"],
        "version": wheel["version"],
        "purl": place,
        "hashes": [{"alg": "SHA-256", "content": wheel["sha256"]}],
        "properties": [{"name": "rackwell:wheel", "value": wheel["filename"]}],
    }
    if summary := _text(header.get("Summary")):
        component["description"] = summary
    if licences := _licences(header):
        component["licenses"] = licences
    if git:
        tree = f"tree {git['tree']}" + (f", in {git['subdirectory']}" if git["subdirectory"] else "")
        modules = [f"submodule {sub['path']} at {sub['commit']}" for sub in git["submodules"]]
        comment = f"commit {git['commit']}, " + ", ".join([tree, *modules])
        component["externalReferences"] = [{"type": "vcs", "url": git["url"], "comment": comment}]
    mine = [patch for patch in materials.patches if patch.meta.project == wheel["project"]]
    if source and mine:
        component["pedigree"] = _pedigree(source, place, mine)
    return component


def _pedigree(source: Mapping[str, Any], place: str, patches: Sequence[Patch]) -> dict[str, Any]:
    """The wheel before it was patched, and what was done to it."""
    return {
        "ancestors": [
            {
                "type": "library",
                "bom-ref": f"unpatched:{place}",
                "name": source["project"],
                "version": source["version"],
                "purl": place,
                "hashes": [{"alg": "SHA-256", "content": source["sha256"]}],
            }
        ],
        "patches": [
            {
                "type": "backport" if patch.meta.upstream_since else "unofficial",
                "diff": {
                    "text": {"contentType": "text/x-diff", "content": patch.diff.read_bytes().decode(errors="replace")}
                },
                "resolves": [{"type": "enhancement", "name": patch.meta.name, "description": patch.meta.summary}],
            }
            for patch in patches
        ],
        "notes": "; ".join(
            f"{patch.meta.name}: {patch.meta.status}, sha256 {patch.sha256}"
            + (f", risk accepted: {patch.accept_risk}" if patch.accept_risk else "")
            for patch in patches
        ),
    }


def _licences(header: email.message.Message) -> list[dict[str, Any]]:
    """As CycloneDX has them: one expression, or licences by id or name."""
    stated = [_text(header.get("License-Expression")), _text(header.get("License"))]
    for text in stated:
        try:
            if text:
                return [{"expression": canonicalize_license_expression(text)}]
        except InvalidLicenseExpression:
            continue
    classifiers = [str(text) for text in header.get_all("Classifier", [])]
    names = [text.removeprefix(_CLASSIFIED) for text in classifiers if text.startswith(_CLASSIFIED)]
    if names:
        found = [{"id": _SPDX[name]} if name in _SPDX else {"name": name} for name in sorted(set(names))]
        return [{"license": licence} for licence in found]
    first = next((text for text in stated if text and text.upper() != "UNKNOWN"), "")
    # some put the whole licence there
    return [{"license": {"name": first[:100]}}] if first else []


def _text(value: object) -> str:
    """The first line of a header's value."""
    lines = str(value).strip().splitlines() if value is not None else []
    return lines[0].strip() if lines else ""


def _requires(header: email.message.Message, python: str) -> set[str]:
    """Projects that a wheel asks for on `python`, those of its extras left out."""
    environment = marker_environment(python)
    found = set()
    for text in header.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(str(text))
            if requirement.marker is None or Marker(str(requirement.marker)).evaluate(environment):
                found.add(str(canonicalize_name(requirement.name)))
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue
    return found


def _header(path: Path) -> email.message.Message:
    try:
        return metadata_of(path)
    except (*MALFORMED, OSError, zipfile.BadZipFile):
        return email.message.Message()  # what installs it says more of that


def _version(filename: str) -> str:
    return filename.split("-")[1]
