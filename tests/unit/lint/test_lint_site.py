# SPDX-License-Identifier: Apache-2.0
"""The lint of whole sites: once a profile, with the line; ignored with a reason; tables read on the spot."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rackwell.errors import RackwellError
from rackwell.lint import Finding
from rackwell.provision import declared

sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
from sitemaker import SiteMaker

HOST_VARS = """\
pve_container_host: pve{n}
pve_container_vmid: 20{n}
pve_container_hostname: glm5-0{n}
pve_container_ip: 192.0.2.2{n}/24
"""


@pytest.fixture
def site(tmp_path: Path) -> SiteMaker:
    return SiteMaker(tmp_path / "site")


def found(site: SiteMaker) -> dict[str, Finding]:
    """Finding by code; a code that comes twice fails."""
    findings = declared.check(site.load()).findings
    by_code = {finding.code: finding for finding in findings}
    assert len(by_code) == len(findings), findings
    return by_code


def test_a_plain_profile_has_no_errors(site: SiteMaker) -> None:
    findings = declared.check(site.load()).findings
    assert [finding for finding in findings if finding.severity == "error"] == []


def test_an_unknown_flag_is_an_error_at_its_line(site: SiteMaker) -> None:
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  kv-cache-dypte: bf16\n")
    finding = found(site)["RW101"]
    assert finding.where == site.line("profiles/toy.yml", "kv-cache-dypte")
    assert finding.fix == "did you mean 'kv-cache-dtype'?"
    assert "RW101" in {problem.code for problem in declared.problems(site.load())}
    with pytest.raises(RackwellError) as caught:
        declared.target(site.load(), "glm5-01")
    assert [problem.code for problem in caught.value.problems] == ["RW101"]


def test_a_flag_that_was_renamed_names_its_successor(site: SiteMaker) -> None:
    site.edit("builds/server.yml", "0.5.9", "0.5.23")
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  cuda-graph-max-bs: 32\n")
    finding = found(site)["RW102"]
    assert finding.fix == "use `cuda-graph-max-bs-decode`"
    assert "0.5.19 was the last release" in finding.what


def test_a_profile_is_linted_once_however_many_containers_have_it(site: SiteMaker) -> None:
    site.edit(
        "hosts.yml",
        "          ansible_host: 192.0.2.10\n",
        "          ansible_host: 192.0.2.10\n        pve2:\n          ansible_host: 192.0.2.11\n",
    )
    site.edit("hosts.yml", "        glm5-01:\n", "        glm5-01:\n        glm5-02:\n")
    site.write("host_vars/glm5-02.yml", HOST_VARS.format(n=2))
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 4\n  kv-cache-dypte: bf16\n")
    assert {"RW101", "RW502"} <= set(found(site))


@pytest.mark.parametrize("place", ["above", "behind"])
def test_a_comment_with_a_reason_ignores(site: SiteMaker, place: str) -> None:
    comment = "# rackwell: ignore RW502 the others serve the embedding model"
    line = f"  {comment}\n  tp-size: 4\n" if place == "above" else f"  tp-size: 4  {comment}\n"
    site.edit("profiles/toy.yml", "  tp-size: 8\n", line)
    assert found(site)["RW502"].ignored == "the others serve the embedding model"
    assert {"RW190", "RW191", "RW192"}.isdisjoint(found(site))


def test_an_error_that_is_ignored_is_no_problem(site: SiteMaker) -> None:
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  x-flag: 1  # rackwell: ignore RW101 of our fork\n")
    assert declared.problems(site.load()) == []
    assert found(site)["RW101"].ignored == "of our fork"


def test_comments_that_are_wrong(site: SiteMaker) -> None:
    site.add("profiles/toy.yml", "# rackwell: ignore RW999 because\n# rackwell: ignore RW804 because\n")
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 4  # rackwell: ignore RW502\n")
    codes = found(site)
    assert {"RW190", "RW191", "RW192", "RW502"} <= set(codes)
    assert (codes["RW190"].severity, codes["RW191"].severity, codes["RW192"].severity) == ("error", "error", "note")
    assert codes["RW502"].ignored == ""
    assert codes["RW191"].where == site.line("profiles/toy.yml", "RW999")


def test_the_story_s_traps_in_one_profile(site: SiteMaker) -> None:
    site.edit("builds/server.yml", "version: 0.5.9\n", "version: 0.5.9\n  flashinfer-python:\n    version: 0.6.3\n")
    site.edit("profiles/toy.yml", "  served_name: glm-5\n", "  served_name: glm-5\n  facts: glm-5-nvfp4\n")
    site.edit(
        "profiles/toy.yml",
        "  moe-runner-backend: flashinfer_cutlass\n",
        "  moe-runner-backend: flashinfer_trtllm\n  quantization: modelopt_fp4\n  attention-backend: flashinfer\n"
        "  disable-radix-cache: true\n  enable-flashinfer-allreduce-fusion: true\n",
    )
    site.add("profiles/toy.yml", 'environment: {SGLANG_DISABLE_DEEP_GEMM: "1", FLASHINFER_WORKSPACE_BASE: /x}\n')
    codes = set(found(site))
    assert {"RW202", "RW303", "RW306", "RW307", "RW401", "RW601", "RW604", "RW801"} <= codes
    site.edit("profiles/toy.yml", "  disable-radix-cache: true\n", "")
    assert "RW201" in found(site)


def test_facts_that_there_are_not(site: SiteMaker) -> None:
    site.edit("profiles/toy.yml", "  served_name: glm-5\n", "  served_name: glm-5\n  facts: glm-9\n")
    (problem,) = declared.problems(site.load())
    assert (problem.code, problem.where) == ("unknown-facts", site.line("profiles/toy.yml", "glm-9"))
    text = "match: [x]\narchitecture: GlmMoeDsaForCausalLM\nsource: the test\nmtp: false\n"
    site.write("models/glm-9.yml", text)
    site.edit("profiles/toy.yml", "  tp-size: 8\n", "  tp-size: 8\n  speculative-algorithm: NEXTN\n")
    assert "RW511" in found(site)


def test_the_topology_is_that_of_the_newest_report(site: SiteMaker) -> None:
    site.add("profiles/toy.yml", "environment: {NCCL_P2P_LEVEL: SYS}\n")
    assert "RW404" not in found(site)
    report = {"topology": {"classes": [[None, "same-switch"], ["same-root-complex", None]]}}
    site.write(".rackwell/gpu/glm5-01.json", json.dumps(report))
    assert found(site)["RW404"].fix == "set `NCCL_P2P_LEVEL: PHB`"


def test_a_version_without_a_table_is_read_from_the_locked_wheel(site: SiteMaker) -> None:
    site.edit("builds/server.yml", "0.5.9", "0.99.0")
    assert found(site)["RW110"].severity == "note"
    source = "class ServerArgs:\n    def add_cli_args(parser):\n        parser.add_argument('--tp-size', type=int)\n"
    wheel = site.root / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/srt/server_args.py", source)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    blob = site.root / ".rackwell/blobs/sha256" / sha256
    blob.parent.mkdir(parents=True)
    wheel.rename(blob)
    _lock(site, sha256)
    findings = found(site)
    assert "RW110" not in findings
    assert findings["RW102"].what.startswith("SGLang 0.99.0 has no flag 'moe-runner-backend' any more")
    kept = site.root / ".rackwell/flags" / f"{sha256}.json"
    assert json.loads(kept.read_text())["version"] == "0.99.0"


def _lock(site: SiteMaker, sha256: str) -> None:
    from rackwell.build import load_build
    from rackwell.build import lock as locks

    spec = load_build(site.root / "builds/server.yml")
    installer = locks.LockedWheel("uv", "1", "uv-1-py3-none-any.whl", "0" * 64, 1)
    engine = locks.LockedWheel("sglang", "0.99.0", "sglang-0.99.0-py3-none-any.whl", sha256, 1)
    lock = locks.Lock(locks.inputs_digest(spec, "3.11"), installer, (engine,), ())
    locks.write_lock(site.root / "builds/server.lock", lock)


def test_what_check_lists_has_the_one_shape(site: SiteMaker) -> None:
    findings: list[dict[str, Any]] = [finding.as_dict() for finding in declared.check(site.load()).findings]
    assert findings
    for finding in findings:
        assert set(finding) == {"code", "severity", "what", "where", "why", "fix", "ignored"}
        assert finding["where"].startswith(str(site.root))
