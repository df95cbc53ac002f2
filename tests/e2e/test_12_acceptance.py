# SPDX-License-Identifier: Apache-2.0
"""`rackwell verify --acceptance`: what holds passes, and each thing changed behind rackwell's back is found."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from .conftest import Ended, inside, lab, more, rackwell

SERVER = "rackwell-inference.service"
ENV = "/etc/rackwell/inference.env"


def accept(site: Path, container: str) -> Ended:
    return rackwell("verify", container, "--acceptance", "-i", site)


def restart(container: str) -> None:
    """Start the engine anew, and wait until it serves."""
    asks = "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health')"
    inside(
        container,
        f"systemctl restart {SERVER}; "
        f'for n in $(seq 600); do python3 -c "{asks}" 2>/dev/null && exit 0; sleep 0.2; done; exit 1',
    )


def failed(ended: Ended) -> dict[str, dict[str, str]]:
    """What does not hold, by item."""
    (one,) = ended.result["containers"]
    return {check["item"]: check for check in one["checks"] if check["verdict"] == "fail"}


@pytest.fixture(scope="module", autouse=True)
def served(site: Path, container: str, host: str) -> None:
    lab("reset", "--host", host)
    assert rackwell("provision", container, "-i", site, "--no-bench").code == 0


def test_what_is_provisioned_is_accepted_and_recorded(site: Path, container: str, host: str) -> None:
    done = accept(site, container)
    assert (done.code, failed(done)) == (0, {}), done.json["problems"]
    assert done.json["schema"] == "rackwell.acceptance/1"
    (one,) = done.result["containers"]
    assert one["counts"]["unknown"] == 0
    assert one["counts"]["pass"] > 30
    tree = ET.parse(one["junit"]).getroot()
    suites = tree if tree.tag == "testsuite" else tree[0]
    assert int(suites.attrib["tests"]) == len(one["checks"])
    assert int(suites.attrib["failures"]) == 0
    kept = json.loads(Path(one["report"]).read_text())
    assert kept["checks"] == one["checks"]
    assert json.loads(Path(done.result["report"]).read_text())["verdict"] == "pass"


OTHER = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.133.20"
MANIFEST = "/opt/rackwell/current/manifest.json"
CONF = "/etc/pve/lxc/{vmid}.conf"
# the item that must tell it; where; what is done behind rackwell's back; how it is taken back
FAULTS = [
    ("configuration/options", "host", f"sed -i s/^swap:.*/swap:512/ {CONF}", f"sed -i 's/^swap:.*/swap: 0/' {CONF}"),
    ("container/nodes", "container", "chmod 0600 /dev/nvidia1", "chmod 0666 /dev/nvidia1"),
    ("container/nodes-usable", "container", "chmod 0600 /dev/nvidia2", "chmod 0666 /dev/nvidia2"),
    ("container/service-user", "container", "usermod -aG sudo rackwell", "gpasswd -d rackwell sudo"),
    ("container/driver", "container", f"echo stale >{OTHER}", f"rm {OTHER}"),
    (
        "container/gate",
        "container",
        "systemctl disable rackwell-gpu-gate.service",
        "systemctl enable rackwell-gpu-gate.service",
    ),
    ("release/manifest", "container", f"cp {MANIFEST} /root/kept; echo >>{MANIFEST}", f"cp /root/kept {MANIFEST}"),
    ("release/owner", "container", f"chmod 0666 {MANIFEST}", f"chmod 0644 {MANIFEST}"),
    ("server/active", "container", f"systemctl disable {SERVER}", f"systemctl enable {SERVER}"),
    ("server/secrets", "container", f"chmod 0644 {ENV}", f"chmod 0600 {ENV}"),
    (
        "host/nodes-unit",
        "host",
        "systemctl disable rackwell-gpu-nodes.service",
        "systemctl enable rackwell-gpu-nodes.service",
    ),
]


@pytest.fixture
def changed(site: Path, container: str, host: str) -> Iterator[None]:
    vmid = yaml.safe_load((site / f"host_vars/{container}.yml").read_text())["pve_container_vmid"]
    places = {"host": host, "container": container}
    done = []
    try:
        for _, where, change, back in FAULTS:
            inside(places[where], change.format(vmid=vmid))
            done.append((where, back))
        lab("set", "--host", host, "kernel", "hmm=true")
        yield
    finally:
        lab("reset", "--host", host)
        for where, back in reversed(done):
            inside(places[where], back.format(vmid=vmid))


@more
@pytest.mark.usefixtures("changed")
def test_each_thing_changed_by_hand_is_found_with_its_remedy(site: Path, container: str) -> None:
    done = accept(site, container)
    found = failed(done)
    assert done.code == 1
    assert set(found) == {item for item, *_ in FAULTS} | {"host/hmm"}
    assert all(check["expected"] and check["found"] and check["fix"] for check in found.values()), found
    assert "uvm_disable_hmm=1" in found["host/hmm"]["fix"]
    assert OTHER in found["container/driver"]["found"]
    told = [problem["what"] for problem in done.json["problems"]]
    assert len(told) == len(found)
    assert set(done.codes) == {"not-accepted"}
    text = Path(done.result["containers"][0]["junit"]).read_text()
    assert text.count("<failure") == len(found)


@more
def test_a_changed_host_key_is_refused_and_the_other_machine_still_looked_at(
    edited: Callable[..., Path], container: str, host: str
) -> None:
    copy = edited({})
    known = copy / "known_hosts"
    lines = known.read_text().splitlines()
    address = inside(host, "hostname -I").split()[0]
    other = next(line.split(" ", 1)[1] for line in lines if not line.startswith(f"{address} "))
    known.write_text(
        "\n".join(f"{address} {other}" if line.startswith(f"{address} ") else line for line in lines) + "\n"
    )
    done = accept(copy, container)
    assert done.code == 6
    assert done.codes[0] == "host-key-changed"
    (one,) = done.result["containers"]
    verdicts = {check["item"]: check["verdict"] for check in one["checks"]}
    assert verdicts["host/driver"] == "unknown"
    assert verdicts["server/answer"] == "pass"


@more
def test_a_held_gate_waits_for_a_person(site: Path, container: str) -> None:
    verdict = "/run/rackwell/gate.json"
    program = f"import json; p='{verdict}'; d=json.load(open(p)); d['held']=True; json.dump(d, open(p,'w'))"
    inside(container, f'cp -p {verdict} /run/kept; python3 -c "{program}"')
    try:
        done = accept(site, container)
    finally:
        inside(container, f"mv /run/kept {verdict}")
    assert (done.code, set(failed(done))) == (4, {"container/gate"})
    assert "gate-held" in done.codes


@more
def test_another_driver_and_a_model_that_answers_wrongly(
    site: Path, container: str, host: str, faults: Callable[..., str]
) -> None:
    # the engine reads how it is to behave when it starts
    faults("engine", "faults.output=garbage")
    restart(container)
    try:
        faults("kernel", "version=570.133.20")
        found = failed(accept(site, container))
    finally:
        lab("reset", "--host", host)
        restart(container)
    assert {"host/driver", "host/gpus", "container/driver", "server/answer"} <= set(found)
    assert "570.133.20" in found["host/driver"]["found"]


@more
def test_what_is_declared_now_and_runs_otherwise(edited: Callable[..., Path], container: str) -> None:
    flags = {"tp-size": 8, "max-running-requests": 7}
    copy = edited({"profiles/glm5-lab.yml": {"environment": {"NCCL_P2P_LEVEL": "PHB"}}})
    profile = copy / "profiles/glm5-lab.yml"
    profile.write_text(
        profile.read_text().replace(
            "max-running-requests: 1024", f"max-running-requests: {flags['max-running-requests']}"
        )
    )
    found = failed(accept(copy, container))
    assert {"server/flags", "server/environment"} <= set(found)
    assert "--max-running-requests 1024" in found["server/flags"]["found"]


@more
def test_a_server_that_does_not_run(site: Path, container: str) -> None:
    inside(container, f"systemctl stop {SERVER}")
    try:
        done = accept(site, container)
    finally:
        restart(container)
    assert done.code == 1
    assert {"server/active", "server/release", "server/health", "server/answer"} <= set(failed(done))
