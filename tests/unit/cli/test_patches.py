# SPDX-License-Identifier: Apache-2.0
"""``rackwell patches``, and what ``build`` and ``check`` say of patches."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "build"))

import tinywheels
import yaml
from cli_rig import Rig

from rackwell import shipped
from rackwell.build.catalogue import wheels
from rackwell.errors import ExitCode
from rackwell.provision import builds, declared
from rackwell.provision.builds import Built
from rackwell.provision.crediting import release_reference

SHIPPED = {
    "sglang/flashinfer-autotune-cutlass",
    "sglang/allreduce-fusion-sm120",
    "sglang/allreduce-fusion-auto-sm120",
    "flashinfer-python/trtllm-comm-jit-sm120",
    "flashinfer-python/trtllm-allreduce-guards-sm120",
    "flashinfer-python/gdc-moe-sm120",
    "flashinfer-python/gdc-gemm-sm120",
}


@pytest.fixture
def small(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue with one patch of a tiny engine, of which an index has two versions; the newer one has the change."""
    catalog = tmp_path / "catalog"
    folder = catalog / "patches/sglang/example"
    folder.mkdir(parents=True)
    (folder / "patch.yml").write_text(tinywheels.PATCH_YML + 'upstream_since: "0.5.10"\n')
    (folder / "0.5.9.patch").write_text(tinywheels.PATCH)
    index = tmp_path / "index"
    newer = {**tinywheels.ENGINE, "sglang/runner.py": tinywheels.ENGINE["sglang/runner.py"].replace("21", "twenty-one")}
    made = [
        tinywheels.make_wheel(index, "sglang", "0.5.9", tinywheels.ENGINE),
        tinywheels.make_wheel(index, "sglang", "0.5.10", newer),
    ]
    listed = "".join(
        f'    "{path.name.split("-")[1]}": {{filename: {path.name}, size: {path.stat().st_size}, '
        f'sha256: "{hashlib.sha256(path.read_bytes()).hexdigest()}"}}\n'
        for path in made
    )
    known = f'shown: {{sglang: ["0.5.9"]}}\nwheels:\n  sglang:\n{listed}'
    (catalog / "patches/wheels.yml").write_text(known)
    (catalog / "builds").mkdir()
    for name in ("probe", "bench-client"):
        (catalog / f"builds/{name}.yml").write_text('python: "3.11"\nrequirements: [x==1]\n')
    monkeypatch.setattr(shipped, "catalog", lambda: catalog)
    # as if they had been fetched: that they can be is shown by one test
    blobs = tmp_path / "cache/blobs/sha256"
    blobs.mkdir(parents=True)
    for path in made:
        shutil.copy(path, blobs / hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("RACKWELL_CACHE", str(tmp_path / "cache"))
    for name, value in tinywheels.index_environment(index).items():
        monkeypatch.setenv(name, value)
    return catalog


def cells(envelope: dict[str, Any]) -> dict[str, dict[str, str]]:
    (table,) = envelope["result"]["tables"]
    return {row["patch"]: {cell["version"]: cell["verdict"] for cell in row["cells"]} for row in table["rows"]}


def test_list_names_what_ships_and_what_lies_in_the_site(rig: Rig) -> None:
    envelope = rig.json("patches", "list")
    assert envelope["schema"] == "rackwell.patches/1"
    assert {patch["id"] for patch in envelope["result"]["patches"]} == SHIPPED
    rig.site.write("builds/patches/mine/patch.yml", tinywheels.PATCH_YML)
    rig.site.write("builds/patches/mine/0.5.9.patch", tinywheels.PATCH)
    assert rig.at_site("patches", "list") == 0
    assert "./patches/mine" in rig.out
    rig.site.write("builds/patches/mine/patch.yml", tinywheels.PATCH_YML.replace("status:", "state:"))
    envelope = rig.json("patches", "list")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, ["unknown-key"])
    assert {patch["id"] for patch in envelope["result"]["patches"]} == SHIPPED


def test_show_tells_all_that_is_known(rig: Rig) -> None:
    assert rig.at_site("patches", "show", "allreduce-fusion-sm120", "--version", "0.5.20") == 0
    for text in (
        "harmful",
        "3,740 to 236 tok/s",
        "flashinfer-allreduce-fusion-backend: auto or trtllm",
        "0.5.19.patch",
    ):
        assert text in rig.out
    assert "+++ b/sglang/srt/layers/communicator.py" in rig.out
    envelope = rig.json("patches", "show", "sglang/flashinfer-autotune-cutlass", "--version", "0.5.13")
    assert envelope["result"]["diff"] is None
    assert envelope["result"]["patches"][0]["upstream_since"] == "0.5.13"
    assert rig.at_site("patches", "show", "flashinfer-autotune-cutlass", "--version", "0.5.13") == 0
    assert "sglang 0.5.13 has the change" in rig.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "nothing"], "patch-unknown"),
        (["show", "flashinfer-autotune-cutlass", "--version", "x"], "usage"),
        (["show", "flashinfer-autotune-cutlass", "--version", "newest"], "usage"),
        (["verify", "nothing"], "patch-unknown"),
        (["verify", "--project", "vllm"], "usage"),
        (["verify", "--version", "0.5.9"], "usage"),
        (["new", "x", "--project", "vllm", "--version", "1", "--from", "."], "usage"),
        (["new", "X Y", "--project", "sglang", "--version", "0.5.9", "--from", "."], "wrong-name"),
        (["new", "x", "--project", "sglang", "--version", "0.5.9", "--from", "/nowhere"], "not-a-tree"),
        (["verify", "--nope"], "usage"),
        (["nope"], "usage"),
    ],
)
def test_what_cannot_be_done_is_said(rig: Rig, arguments: list[str], code: str) -> None:
    envelope = rig.json("patches", *arguments)
    assert (envelope["schema"], envelope["exit_code"]) == ("rackwell.patches/1", ExitCode.INVALID)
    assert rig.codes(envelope) == [code]
    assert envelope["problems"][0]["fix"]


def test_verify_tries_the_real_wheels(rig: Rig, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKWELL_CACHE", str(tmp_path / "empty"))
    envelope = rig.json("patches", "verify", "--all")
    assert (envelope["ok"], envelope["problems"]) == (True, [])
    assert cells(envelope) == {"sglang/example": {"0.5.9": "applies", "0.5.10": "upstream"}}
    (table,) = envelope["result"]["tables"]
    assert all(wheel["known"] and len(wheel["sha256"]) == 64 for wheel in table["wheels"])
    assert rig.at_site("patches", "verify", "--markdown") == 0
    assert "| sglang | 0.5.9 |\n| --- | --- |\n| sglang/example | applies |\n" in rig.out
    assert f"0.5.9 `{table['wheels'][0]['sha256'][:12]}`" in rig.out
    assert cells(rig.json("patches", "verify", "example", "--version", "newest")) == {
        "sglang/example": {"0.5.10": "upstream"}
    }
    monkeypatch.setattr(wheels, "look_up", lambda *_: pytest.fail("the index was asked"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert rig.at_site("patches", "verify") == 0
    assert rig.out.split() == ["sglang", "0.5.9", "sglang/example", "applies"]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "word"),
    [
        ('"0.5.9": 0.5.9.patch', '">=0.5.8,<0.5.10": 0.5.9.patch', "applies", ""),
        ('upstream_since: "0.5.10"\n', "", "upstream", "the patch does not say so"),
        ('"0.5.10"', '"0.5.11"', "upstream", "the patch does not say so"),
        ('"0.5.9": 0.5.9.patch', '"0.5.8": 0.5.9.patch', "applies", ""),
        ('"0.5.9": 0.5.9.patch', '">=0.5.9,<0.5.11": 0.5.9.patch', "upstream", "it says that it applies to 0.5.10"),
    ],
)
def test_a_patch_that_says_what_is_not_so_fails(
    rig: Rig, small: Path, old: str, new: str, verdict: str, word: str
) -> None:
    entry = small / "patches/sglang/example/patch.yml"
    text = entry.read_text()
    assert old in text
    entry.write_text(
        text.replace(old, new).replace('upstream_since: "0.5.10"', "") if "<0.5.11" in new else text.replace(old, new)
    )
    envelope = rig.json("patches", "verify", "--all")
    assert verdict in cells(envelope)["sglang/example"].values()
    if word:
        assert (envelope["exit_code"], rig.codes(envelope)) == (1, ["patch-claim-wrong"])
        assert word in envelope["problems"][0]["why"]
        assert envelope["problems"][0]["where"].startswith(f"{entry}:")
    else:
        assert envelope["exit_code"] == 0


def test_a_patch_that_goes_beyond_what_it_says_is_told(rig: Rig, small: Path) -> None:
    entry = small / "patches/sglang/example/patch.yml"
    entry.write_text(entry.read_text().replace('"0.5.9":', '"0.5.8":'))
    assert rig.at_site("patches", "verify") == 0
    assert "applies (not claimed)" in rig.out


@pytest.fixture
def tree(small: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "edited"
    with zipfile.ZipFile(tmp_path / "index/sglang-0.5.9-py3-none-any.whl") as archive:
        archive.extractall(folder)
    runner = folder / "sglang/runner.py"
    runner.write_text(runner.read_text().replace("line 5\n", "line five\n"))
    return folder


def test_new_in_the_site_then_build_and_verify_with_it(rig: Rig, tree: Path) -> None:
    arguments = ["--project", "sglang", "--version", "0.5.9", "--from", str(tree), "--summary", "counts"]
    envelope = rig.json("patches", "new", "mine", *arguments)
    assert envelope["ok"], envelope
    assert envelope["result"]["files"] == {"sglang/runner.py": 1}
    folder = rig.site.root / "builds/patches/mine"
    assert sorted(path.name for path in folder.iterdir()) == ["0.5.9.patch", "patch.yml"]
    assert cells(rig.json("patches", "verify"))["./patches/mine"] == {"0.5.9": "applies"}
    rig.site.add("builds/server.yml", "patches: [./patches/mine]\n")
    assert rig.json("check")["problems"] == []
    # again: it says something of that version already
    envelope = rig.json("patches", "new", "mine", *arguments)
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, ["patch-exists"])


def test_new_says_what_to_do_next(rig: Rig, tree: Path) -> None:
    assert rig.at_site("patches", "new", "mine", "--project", "sglang", "--version", "0.5.9", "--from", str(tree)) == 0
    assert "it applies to sglang 0.5.9 without fuzz and gives the edited files, byte for byte" in rig.out
    assert "patches: [./patches/mine]" in rig.out


def test_new_in_the_catalogue(rig: Rig, tree: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["sglang/mine", "--project", "sglang", "--version", "0.5.9", "--from", str(tree), "--catalogue"]
    monkeypatch.setattr(shipped, "checkout", lambda: None)
    assert rig.codes(rig.json("patches", "new", *arguments)) == ["not-a-checkout"]
    monkeypatch.setattr(shipped, "checkout", lambda: small.parent)
    assert rig.json("patches", "new", *arguments)["ok"]
    assert "name: sglang/mine\n" in (small / "patches/sglang/mine/patch.yml").read_text()
    assert cells(rig.json("patches", "verify"))["sglang/mine"] == {"0.5.9": "applies"}


def test_new_without_a_site(rig: Rig, tree: Path, tmp_path: Path) -> None:
    code = rig.run(
        *("patches", "new", "mine", "--project", "sglang", "--version", "0.5.9"),
        *("--from", str(tree), "-i", str(tmp_path / "none")),
    )
    assert code == 2
    assert "that is no site" in rig.err


# what other commands say

HARMFUL = "patches: [{name: flashinfer-python/trtllm-comm-jit-sm120, accept_risk: to measure}]\n"


def with_flashinfer(rig: Rig, patches: str) -> None:
    rig.site.add("builds/server.yml", f"  flashinfer-python: {{version: 0.6.3}}\n{patches}")


def test_check_refuses_a_harmful_patch_and_shows_an_accepted_one(rig: Rig) -> None:
    with_flashinfer(rig, HARMFUL.replace(", accept_risk: to measure", ""))
    envelope = rig.json("check")
    assert (envelope["exit_code"], rig.codes(envelope)) == (2, ["patch-harmful"])
    assert "3,740 to 236 tok/s" in envelope["problems"][0]["why"]
    rig.site.edit("builds/server.yml", "sm120}", "sm120, accept_risk: to measure}")
    envelope = rig.json("check")
    assert envelope["ok"]
    (risk,) = envelope["result"]["accepted_risks"]
    assert (risk["build"], risk["reason"]) == ("server", "to measure")
    assert risk["where"] == rig.site.line("builds/server.yml", "accept_risk")
    assert rig.at_site("check") == 0
    assert "build server has the harmful patch flashinfer-python/trtllm-comm-jit-sm120; accepted in" in rig.out
    assert rig.out.rstrip().endswith("to measure")


def test_check_holds_flags_by_version_against_the_profile(rig: Rig) -> None:
    with_flashinfer(
        rig,
        'patches:\n  - {name: flashinfer-python/trtllm-comm-jit-sm120, accept_risk: "x"}\n'
        '  - {name: sglang/allreduce-fusion-sm120, accept_risk: "x"}\n',
    )
    envelope = rig.json("check")
    assert rig.codes(envelope) == ["patch-without-effect"]
    assert "needs the flag enable-flashinfer-allreduce-fusion: true" in envelope["problems"][0]["what"]
    rig.site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  flashinfer-allreduce-fusion-backend: trtllm\n")
    # the flag that later releases need is none of this one
    assert rig.codes(rig.json("check")) == ["patch-without-effect", "RW103"]
    rig.site.edit("builds/server.yml", "version: 0.5.9", "version: 0.5.14")
    assert rig.json("check")["problems"] == []
    rig.site.edit("profiles/toy.yml", "backend: trtllm", "backend: mnnvl")
    (problem,) = rig.json("check")["problems"]
    assert problem["what"].endswith("flashinfer-allreduce-fusion-backend: auto or trtllm")
    assert problem["why"] == "the profile has 'mnnvl'"


def test_check_sees_a_flag_that_switches_the_patch_off(rig: Rig) -> None:
    rig.site.add("builds/server.yml", "patches: [sglang/flashinfer-autotune-cutlass]\n")
    assert rig.json("check")["problems"] == []
    rig.site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  disable-flashinfer-autotune: true\n")
    (problem,) = rig.json("check")["problems"]
    assert problem["code"] == "patch-without-effect"
    assert problem["where"] == rig.site.line("profiles/toy.yml", "disable-flashinfer-autotune")
    rig.site.edit("profiles/toy.yml", "autotune: true", "autotune: false")
    assert rig.json("check")["problems"] == []


def test_check_names_the_story_s_first_attempt(rig: Rig) -> None:
    """Only SGLang's gate was patched, and FlashInfer refused to compile."""
    with_flashinfer(rig, 'patches: [{name: sglang/allreduce-fusion-sm120, accept_risk: "x"}]\n')
    rig.site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  enable-flashinfer-allreduce-fusion: true\n")
    (problem,) = rig.json("check")["problems"]
    assert problem["code"] == "patch-needs-patch"
    assert "trtllm-comm-jit-sm120" in problem["what"]


def test_check_looks_at_the_patches_of_every_build(rig: Rig) -> None:
    rig.site.write(
        "builds/probe.yml", 'python: "3.11"\nsources: {sglang: {version: 0.5.9}}\npatches: [sglang/nothing]\n'
    )
    assert rig.codes(rig.json("check")) == ["patch-unknown"]


def test_build_shows_an_accepted_risk(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = {"wheels": [], "patches": [{"name": "sglang/a"}, {"name": "sglang/b", "accept_risk": "to measure"}]}
    monkeypatch.setattr(builds, "make", lambda *_, **__: Built("server", "d" * 64, tmp_path, True, manifest))
    envelope = rig.json("build", "server")
    assert envelope["result"]["releases"][0]["accepted_risks"] == [{"patch": "sglang/b", "reason": "to measure"}]
    assert rig.at_site("build", "server") == 0
    assert "harmful: sglang/b; accepted: to measure" in rig.out


def test_a_benchmark_names_the_accepted_risk(tmp_path: Path) -> None:
    manifest = {"wheels": [], "patches": [{"name": "sglang/a"}, {"name": "sglang/b", "accept_risk": "to measure"}]}
    reference = release_reference(Built("server", "d" * 64, tmp_path, True, manifest))
    assert reference.patches == ["sglang/a", "sglang/b (harmful; accepted: to measure)"]


def test_containers_of_one_build_read_it_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"glm5-{number:02}" for number in range(2, 12)]
    rig.site.edit("hosts.yml", "        glm5-01:\n", "".join(f"        {name}:\n" for name in ["glm5-01", *names]))
    for number, name in enumerate(names):
        text = (rig.site.root / "host_vars/glm5-01.yml").read_text()
        text = text.replace("201", str(202 + number)).replace("192.0.2.21", f"192.0.2.{22 + number}")
        rig.site.write(f"host_vars/{name}.yml", text.replace("hostname: glm5-01", f"hostname: {name}"))
    read: list[str] = []
    original = declared.load_build
    monkeypatch.setattr(declared, "load_build", lambda path: (read.append(path.stem), original(path))[1])
    site = rig.site.load()
    assert len(site.containers) == 11
    assert {problem.code for problem in declared.problems(site)} == {"gpu-shared"}  # one host for all is no matter here
    assert sorted(read) == ["bench-client", "probe", "server"]


def test_the_schema_for_editors_takes_what_ships_and_no_other(rig: Rig) -> None:
    assert rig.run("check", "--schema", "patch") == 0
    schema = json.loads(rig.out)
    for path in shipped.catalog().glob("patches/*/*/patch.yml"):
        data = yaml.safe_load(path.read_text())
        jsonschema.validate(data, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, "statsu": "neutral"}, schema)
    assert rig.run("check", "--schema", "build") == 0
    build = {"python": "3.11", "sources": {"sglang": {"version": "0.5.9"}}}
    for item in ("a", {"name": "a"}, {"name": "a", "accept_risk": "b"}):
        jsonschema.validate({**build, "patches": [item]}, json.loads(rig.out))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**build, "patches": [{"accept_risk": "b"}]}, json.loads(rig.out))
