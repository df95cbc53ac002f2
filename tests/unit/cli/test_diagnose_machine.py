# SPDX-License-Identifier: Apache-2.0
"""The rules inside the other commands, a diagnosis of a machine, and its bundle; the machines are made up."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import samples
from cli_rig import CONTAINER, DIGEST, GPUS, HOST, Rig, release

from rackwell.provision import bundles, looking
from rackwell.provision.collection import Collection, Taken
from rackwell.provision.scrubbing import Scrubber

sys.path.insert(0, str(Path(__file__).parents[2] / "lab/engine"))

from rackwell_lab_engine.deaths import DEATHS, Death

CAUSES = {
    "oom-load": "sglang-oom-while-loading",
    "kv-memory": "sglang-fraction-too-small",
    "gpu-occupied": "sglang-memory-unbalanced",
    "invalid-device": "sglang-invalid-device-ordinal",
    "no-architecture": "sglang-allreduce-fusion-arch",
    "nccl-interface": "nccl-ifname-missing",
    "parser": "sglang-think-token",
    "rank-killed": "sglang-child-crashed",
    "model-missing": "model-path-missing",
    "no-gpu": "sglang-no-accelerator",
    "unknown-flag": "sglang-flag-unknown",
    "page-table": "sglang-page-table-flattened",
}
"""Death of the stand-in engine -> the rule that knows it."""


def journal(name: str) -> list[str]:
    """What a start that dies so writes."""
    death: Death = DEATHS[name]
    if death.raw:
        return death.raw.splitlines()
    stamp = "[2026-11-30 07:00:00 TP0] "
    lines = [
        stamp + "Load weight begin. avail mem=94.10 GB",
        *(stamp + line for line in death.before),
        stamp + "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/rackwell/sglang/srt/managers/scheduler.py", line 318, in __init__',
        *death.error.splitlines(),
        "",
        "[2026-11-30 07:00:00] Received sigquit from a child process. It usually means the child failed.",
        "[2026-11-30 07:00:00] kill_process_tree called: parent_pid=1, include_parent=True, pid=1",
    ]
    if death.stage == "serve":
        return ["[2026-11-30 06:59:00] The server is fired up and ready to roll!", *lines[1:]]
    return lines if death.stage == "load" else lines[3:-2]


def failed(name: str, **more: Any) -> dict[str, Any]:
    error = {
        "code": "engine-died",
        "what": "the engine died while starting",
        "where": "rackwell-inference.service",
        "why": "it ended with signal 9. Release 0123 is back and serves again",
        "fix": "read the journal",
    }
    return {"rackwell_error": error, "msg": "it died", "journal": journal(name), "task": "Serve the model", **more}


def collected(side: str, **texts: str) -> dict[str, Any]:
    sources = [
        {"name": name.replace("_", "-"), "text": text, "unread": "", "earlier": name == "journal_before", "look": True}
        for name, text in texts.items()
    ]
    return {"schema": "rackwell.collected/1", "side": side, "sources": sources, "facts": {}}


PCT = """\
# pct status 201
status: running
# pct config 201
arch: amd64
cores: 64
dev0: /dev/nvidia0,mode=0666
dev1: /dev/nvidiactl,mode=0666
dev2: /dev/nvidia-uvm,mode=0666
features: nesting=1
hostname: glm5-01
memory: 65536
mp0: /srv/models,mp=/srv/models,ro=1
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=192.0.2.21/24,type=veth
onboot: 1
ostype: debian
rootfs: local-zfs:subvol-201-disk-0,size=200G
swap: 0
unprivileged: 1
"""
"""What a host always tells of a container that is well."""
UNIT = """\
LoadState=loaded
ActiveState=failed
SubState=failed
Result=signal
ExecMainCode=2
ExecMainStatus=9
NRestarts=3
"""
"""And systemd, of every engine that killed itself."""
KILLED = "rackwell-inference.service: Main process exited, code=killed, status=9/KILL"


@pytest.mark.parametrize(("name", "rule"), CAUSES.items())
def test_each_death_is_explained_by_provision_verify_status_and_diagnose(rig: Rig, name: str, rule: str) -> None:
    remedies = set()
    rig.machines.on("provision", ("failed", "glm5-01", "inference_server", failed(name, rolled_back=True)))
    assert rig.run("provision", "glm5-01", "-i", str(rig.site.root), "--no-bench", "--json") == 1
    told = json.loads(rig.out)["problems"][0]
    assert f"[{rule}]" in told["why"]
    assert "is back and serves again" in told["why"]
    remedies.add(told["fix"])

    rig.machines.on(
        "verify",
        ("ok", "pve1", "pve_host", {"rackwell_result": HOST}),
        ("ok", "glm5-01", "pve_container", {"rackwell_result": CONTAINER}),
        ("ok", "glm5-01", "gpu_probe", {"rackwell_result": GPUS}),
        ("ok", "glm5-01", "release", {"rackwell_result": release(DIGEST)}),
        ("failed", "glm5-01", "inference_server", failed(name, rescued=True)),
    )
    assert rig.run("verify", "glm5-01", "-i", str(rig.site.root), "--json") == 1
    told = json.loads(rig.out)["problems"][0]
    assert f"[{rule}]" in told["why"]
    remedies.add(told["fix"])

    seen = {
        "schema": "rackwell.container_status/1",
        "reachable": True,
        "host_reachable": True,
        "container": "status: running",
        "unit": "failed",
        "start": collected("container", journal="\n".join(journal(name))),
    }
    rig.machines.on("status", ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": seen}}))
    rig.run("status", "-i", str(rig.site.root))
    assert f"[{rule}]" in rig.out
    assert "rackwell diagnose --container glm5-01" in rig.out

    rig.machines.on(
        "diagnose",
        (
            "ok",
            "glm5-01",
            "",
            {"rackwell_result": collected("container", unit=UNIT, journal="\n".join([*journal(name), KILLED]))},
        ),
        ("ok", "glm5-01", "", {"rackwell_result": collected("host", kernel="[   1.0] all is quiet", pct=PCT)}),
    )
    assert rig.run("diagnose", "--container", "glm5-01", "-i", str(rig.site.root), "--json") == 0
    first = json.loads(rig.out)["result"]["findings"][0]
    assert (first["id"], first["lines"][0]["source"]) == (rule, "glm5-01 journal")
    remedies.add(first["remedy"])
    assert len(remedies) == 1, "one catalogue gives one remedy"


def test_what_no_rule_knows_is_told_as_it_is(rig: Rig) -> None:
    res = failed("parser", rolled_back=True) | {"journal": ["[2026-11-30 07:00:00] a thing that nobody ever saw"]}
    rig.machines.on("provision", ("failed", "glm5-01", "inference_server", res))
    rig.run("provision", "glm5-01", "-i", str(rig.site.root), "--no-bench", "--json")
    told = json.loads(rig.out)["problems"][0]
    assert (told["what"], told["fix"]) == ("the engine died while starting", "read the journal")


def diagnosed(rig: Rig, *events: Any, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    rig.machines.on("diagnose", *events)
    code = rig.run("diagnose", "--container", "glm5-01", "-i", str(rig.site.root), "--json", *extra)
    return {"code": code, **json.loads(rig.out)}


def test_the_hosts_kernel_explains_what_the_container_complains_of(rig: Rig) -> None:
    xid = "[  900.1] NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    told = diagnosed(
        rig,
        ("ok", "glm5-01", "", {"rackwell_result": collected("container", journal="\n".join(journal("oom-load")))}),
        ("ok", "glm5-01", "", {"rackwell_result": collected("host", kernel=xid)}),
    )
    first = told["result"]["findings"][0]
    assert first["lines"][0]["source"] == "pve1 kernel"
    assert "79" in first["lines"][0]["text"]


def test_an_earlier_start_is_told_apart(rig: Rig) -> None:
    told = diagnosed(
        rig,
        (
            "ok",
            "glm5-01",
            "",
            {
                "rackwell_result": collected(
                    "container",
                    journal="\n".join(journal("kv-memory")),
                    journal_before="\n".join(journal("parser")),
                )
            },
        ),
    )
    assert [finding["id"] for finding in told["result"]["findings"]] == ["sglang-fraction-too-small"]
    assert [start["id"] for start in told["result"]["earlier"]] == ["sglang-think-token"]


def test_a_container_that_does_not_answer_is_diagnosed_from_its_host(rig: Rig) -> None:
    inside = collected("container", journal="\n".join(journal("parser")))
    told = diagnosed(
        rig,
        ("unreachable", "glm5-01", "", {"msg": "Failed to connect to the host via ssh: Connection refused"}),
        ("ok", "glm5-01", "", {"rackwell_result": collected("host", kernel="") | {"inside": inside}}),
    )
    assert told["code"] == 0
    assert told["result"]["findings"][0]["lines"][0]["source"] == "glm5-01 journal"
    assert "ssh-refused" in [problem["code"] for problem in told["problems"]]


def test_nobody_answers(rig: Rig) -> None:
    gone = {"msg": "Failed to connect to the host via ssh: No route to host"}
    assert diagnosed(rig, ("unreachable", "glm5-01", "", gone))["code"] == 6


def test_the_gates_findings_stand_beside_those_of_the_logs(rig: Rig, broken_gate: dict[str, Any]) -> None:
    # what the gate advises is no sign of it
    line = "held by the boot gate: cuda-no-device: no device. Fix: look for Xid 79 in dmesg, GPU has fallen off the bus"
    found = collected("container", journal=line, gate=line.replace("held by the boot gate", "gate held"))
    found["facts"] = {"gate": broken_gate}
    told = diagnosed(rig, ("ok", "glm5-01", "", {"rackwell_result": found}))
    assert [finding["id"] for finding in told["result"]["findings"]] == [f"gate-{broken_gate['code']}"]
    assert told["result"]["findings"][0]["remedy"]


@pytest.fixture
def broken_gate() -> dict[str, Any]:
    return {
        "schema": "rackwell.gate/1",
        "verdict": "fail",
        "held": True,
        "code": "p2p-corrupt-one-way",
        "line": "p2p-corrupt-one-way: what GPU 3 sends to GPU 4 arrives wrong",
        "report": samples.corrupt_one_way(),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("x.log", "--container", "glm5-01"),
        ("--container", "glm5-01", "--host", "pve1"),
        ("--bundle", "x.tar.gz"),
        ("--host", "nobody"),
        ("--container", "nobody"),
    ],
)
def test_wrong_usage(rig: Rig, arguments: tuple[str, ...]) -> None:
    assert rig.run("diagnose", *arguments, "-i", str(rig.site.root)) == 2


# -- the bundle ------------------------------------------------------------------------------------------------------

NASTY = {
    "server arguments": "server_args=ServerArgs(model_path='/m', api_key='MARK-1-hunter', admin_api_key=\"MARK-2-x\")",
    "hugging face": 'HF_TOKEN="hf_MARKaaaaaaaaaaaaaaaaaaaa"',
    "hugging face, bare": "using hf_MARKbbbbbbbbbbbbbbbbbbbb for the download",
    "aws": "export AWS_SECRET_ACCESS_KEY=MARK4/abc+def",
    "password variable": "PGPASSWORD=MARK5",
    "option": "    --api-key MARK6secret \\",
    "option, equals": "    --admin-api-key=MARK7secret --port 3",
    "bearer": "Authorization: Bearer MARK8.abc.def",
    "proxy": "https_proxy=http://user:MARK9@proxy.example:3128/x",
    "git": "git clone https://ghp_MARKcccccccccccccccccccccccc@github.com/x/y",
    "json": '{"password": "MARK11 with space", "tokens": 5}',
    "yaml": "token: MARK13abc",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nMARK14\nMARK14b\n-----END OPENSSH PRIVATE KEY-----",
    "private key, cut off": "-----BEGIN RSA PRIVATE KEY-----\nMARK15\nMARK15b",
    "cookie": "cookie: session=MARK16",
    "nvidia": "NGC_API_KEY=nvapi-MARKdddddddddddddddd",
    "sshpass": "sshpass -p MARK17 ssh x",
    "curl": "curl -s -u admin:MARK18 http://x",
    "header": "curl -H 'X-Api-Key: MARK19x' http://x",
    "shadow": "root:$6$MARKabcdefgh$xyzabcdef:1:1",
    "proxmox": "PVEAPIToken=root@pam!x=MARK20-uuid",
    "host key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMARKaaaaaaaaaaaaaaaaaa root@x",
    "database": "mysql://u:MARK21@db",
    "passphrase": "passphrase = MARK22",
    "known from elsewhere": "python -m sglang.launch_server MARK-1-hunter",
}
HARMLESS = """\
eos_token='</s>' think_end_token: '</think>' token usage: 0.03, #new-token: 44, max_total_num_tokens=1200000
KeyError: 'model.layers.0'; key 'x' not found; tokenizer_path='/m/tok', skip_tokenizer_init=False
usage: launch [--api-key API_KEY] [--ssl-keyfile-password SSL_KEYFILE_PASSWORD]
sglang.service: Failed to set up credentials: Protocol error
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 384.00 MiB."""


def bundle(tmp_path: Path, name: str = "b.tar.gz", text: str = "", **scrubber: Any) -> Path:
    facts = {"versions": {"sglang": "0.5.9"}, "secret_key": "MARK99secret", "said": ["Cookie: a=MARK97", "x"]}
    found = Collection("glm5-01", "pve1", facts=facts)
    found.taken += [
        Taken("pve1", "kernel", "[ 1.0] quiet"),
        Taken("glm5-01", "journal", text or "\n".join([*journal("parser"), *NASTY.values()])),
        Taken("glm5-01", "journal-before", "\n".join(journal("kv-memory")), earlier=True),
        Taken("glm5-01", "unit", "", "password=MARK98 is wrong"),
    ]
    path = tmp_path / name
    bundles.write(path, found, {"site/profile.yml": "flags:\n  api-key: MARK-1-hunter\n"}, Scrubber(**scrubber))
    return path


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive}  # type: ignore[union-attr]


def test_no_secret_is_left_anywhere_in_a_bundle(tmp_path: Path) -> None:
    for name, text in unpacked(bundle(tmp_path)).items():
        left = [line for line in text.splitlines() if "MARK" in line]
        assert not left, (name, left)


@pytest.mark.parametrize("kind", NASTY)
def test_each_kind_of_secret_is_hidden_by_itself(kind: str) -> None:
    text = f"before\n{NASTY[kind]}\n"
    scrubber = Scrubber({"MARK-1-hunter"})
    scrubber.learn([text])
    assert "MARK" not in scrubber.scrub(text)
    assert scrubber.hidden.total() > 0


def test_what_is_no_secret_stays() -> None:
    scrubber = Scrubber()
    scrubber.learn([HARMLESS])
    assert scrubber.scrub(HARMLESS) == HARMLESS


def test_names_of_users_are_hidden_on_demand() -> None:
    text = "/home/ada/x by ada@host, root@host"
    assert Scrubber().scrub(text) == text
    assert "ada" not in Scrubber(names=True).scrub(text)
    assert "root@host" in Scrubber(names=True).scrub(text)


def test_a_bundle_is_the_same_bytes_each_time_and_has_an_index(tmp_path: Path) -> None:
    one, two = bundle(tmp_path, "one.tar.gz"), bundle(tmp_path, "two.tar.gz")
    assert one.read_bytes() == two.read_bytes()
    files = unpacked(one)
    names = [name.removeprefix("rackwell-bundle/") for name in files]
    index = json.loads(files["rackwell-bundle/index.json"])
    assert names[0] == "index.json"
    assert sorted(row["path"] for row in index["files"]) == names[2:]
    assert index["hidden"]
    assert one.stat().st_mode & 0o077 == 0


def test_a_bundle_is_diagnosed_again(rig: Rig, tmp_path: Path) -> None:
    path = bundle(tmp_path, text="\n".join(journal("parser")))
    assert rig.run("diagnose", str(path), "--json") == 0
    result = json.loads(rig.out)["result"]
    assert result["findings"][0]["id"] == "sglang-think-token"
    assert result["earlier"][0]["id"] == "sglang-fraction-too-small"
    assert result["facts"]["versions"]["sglang"] == "0.5.9"


def test_diagnose_writes_one(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "made.tar.gz"
    events = [("ok", "glm5-01", "", {"rackwell_result": collected("container", journal="\n".join(journal("parser")))})]
    told = diagnosed(rig, *events, extra=("--bundle", str(path)))
    assert told["result"]["bundle"] == str(path)
    assert {"rackwell-bundle/glm5-01/journal.txt", "rackwell-bundle/diagnosis.txt"} <= set(unpacked(path))


def _packed(name: str, data: bytes, size: int | None = None) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as stream, tarfile.open(mode="w", fileobj=stream) as archive:
        entry = tarfile.TarInfo("rackwell-bundle/index.json")
        entry.size = len(b"{}")
        archive.addfile(entry, io.BytesIO(b"{}"))
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[: len(data) // 2],
        lambda _: _packed("x", b"y"),
        lambda _: _packed("x", bytes(20 << 20)),
    ],
    ids=["cut off", "no index in it", "a bomb"],
)
def test_a_damaged_bundle_is_refused(rig: Rig, tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    path = bundle(tmp_path, text="\n".join(f"{n} {n * n}" for n in range(5000)))
    path.write_bytes(harm(path.read_bytes()))
    assert rig.run("diagnose", str(path), "--json") == 1
    assert json.loads(rig.out)["problems"][0]["code"] == "bundle-damaged"


def test_a_stop_that_was_asked_for_is_no_failure(rig: Rig) -> None:
    stopping = ["Stopping rackwell-inference.service - Inference server...", KILLED]
    start = collected("container", journal="\n".join(stopping))
    start["facts"]["unit"] = {"Result": "signal", "ExecMainStatus": "9"}
    seen = {"schema": "rackwell.container_status/1", "reachable": True, "host_reachable": True, "unit": "failed"}
    told = ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": {**seen, "start": start}}})
    rig.machines.on("status", told)
    assert rig.run("status", "-i", str(rig.site.root), "--json") == 0
    (row,) = json.loads(rig.out)["result"]["containers"]
    assert (row["unit"], row["why"]) == ("stopped", "")
    # the same end with no one asking
    start["sources"] = collected("container", journal=KILLED)["sources"]
    rig.machines.on("status", told)
    rig.run("status", "-i", str(rig.site.root), "--json")
    (row,) = json.loads(rig.out)["result"]["containers"]
    assert row["unit"] == "failed"
    assert row["why"]


def test_what_ended_the_start_before_is_told_while_the_next_one_serves(rig: Rig) -> None:
    line = "rackwell's watch: detokenizer (process 7) is gone, and the others wait for it; it is ended"
    start = collected("container", journal="The server is fired up and ready to roll!")
    start["sources"] += [{**start["sources"][0], "name": "journal-before", "text": line, "earlier": True}]
    seen = {"schema": "rackwell.container_status/1", "reachable": True, "host_reachable": True, "unit": "active"}
    seen |= {"restarts": "1", "start": start}
    rig.machines.on("status", ("ok", "glm5-01", "", {"ansible_facts": {"rackwell_result": seen}}))
    rig.run("status", "-i", str(rig.site.root), "--json")
    (row,) = json.loads(rig.out)["result"]["containers"]
    assert row["unit"] == "active, 1 restarts"
    assert "detokenizer" in row["why"]
    assert row["fix"].count("it was started anew since") == 1


def test_a_row_of_status_has_no_reason_while_the_server_runs() -> None:
    assert looking.Row("c", "h", "d", "running", "r", "active", "pass", "never").why == ""
