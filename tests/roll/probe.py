# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH110, PTH118, PTH119, PTH120, PTH123, PTH207
"""Runs on a host, from stdin, as root: what is there, as one JSON object. Reads only; knows nothing of rackwell's code.

ssh root@HOST python3 - wheels <probe.py
"""

import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

ROOT, STATE, UNIT = "/opt/rackwell", "/var/lib/rackwell", "rackwell-inference.service"


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def sha256(path):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for part in iter(lambda: stream.read(1 << 20), b""):
                digest.update(part)
    except OSError:
        return None
    return digest.hexdigest()


def properties(unit, *names):
    lines = said("systemctl", "show", unit, *["--property=" + name for name in names]).splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def request(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request("http://127.0.0.1:30000" + path, data, headers), timeout=20
        ) as answer:
            return [answer.status, answer.read().decode("utf-8", "replace")[:2000]]
    except urllib.error.HTTPError as error:
        return [error.code, ""]
    except (OSError, ValueError) as error:
        return [0, str(error)]


def release():
    """The release in the slot: its name, what its files say, and wheels of its manifest that are not what they say."""
    path = os.path.realpath(os.path.join(ROOT, "current"))
    manifest = text(os.path.join(path, "manifest.json"))
    wrong = []
    if manifest and "wheels" in sys.argv[1:]:
        wrong = [
            wheel["filename"]
            for wheel in json.loads(manifest)["wheels"]
            if sha256(os.path.join(ROOT, "store/sha256", wheel["sha256"])) != wheel["sha256"]
        ]
    return {
        "slot": os.path.basename(path),
        "below": os.path.dirname(path),
        "complete": (text(os.path.join(path, "complete")) or "").strip(),
        "manifest_sha256": sha256(os.path.join(path, "manifest.json")),
        "wrong_wheels": wrong,
    }


def processes():
    """Of the server: release that each runs. And what a benchmark or a module of Ansible's left behind."""
    servers, left = [], []
    for path in glob.glob("/proc/[0-9]*"):
        command = (text(path + "/cmdline") or "").replace("\0", " ")
        if "sglang.launch_server" in command:
            found = re.search(r"FLASHINFER_WORKSPACE_BASE=[^\0]*/([0-9a-f]{64})", text(path + "/environ") or "")
            servers.append(found.group(1) if found else "")
        elif re.search(r"bench_serving|rackwell[._]bench|AnsiballZ|ansible-tmp|rollout-agent", command):
            left.append(command[:200])
    return {"servers": servers, "left": left}


def listening():
    """TCP ports on which something listens."""
    ports = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (text(name) or "").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def main():
    unit = properties(UNIT, "ActiveState", "SubState", "InvocationID", "MainPID", "NRestarts")
    lines = said("systemctl", "list-units", "--all", "--plain", "--no-legend", "rackwell-rollout-*").splitlines()
    units = {line.split()[0]: line.split()[2] for line in lines if len(line.split()) > 2}
    secret = sys.argv[sys.argv.index("secret") + 1] if "secret" in sys.argv else ""
    logs = [text(STATE + "/journal.jsonl") or "", text(STATE + "/rollout/journal.jsonl") or ""]
    if secret:
        logs.append(said("journalctl", "--no-pager", "-q"))
    change = json.loads(text(STATE + "/rollout/change.json") or "{}")
    lock = text(STATE + "/rollout/lock.json")
    told = {
        "boot_id": (text("/proc/sys/kernel/random/boot_id") or "").strip(),
        "unit": unit,
        "health": request("/health")[0] if unit.get("ActiveState") == "active" else 0,
        "answer": "",
        "release": release(),
        "processes": processes(),
        "units": units,
        "listening": listening(),
        "change": {
            name: change.get(name) for name in ("run", "state", "why", "until", "boot_id", "confirm_s") if change
        },
        "wanted": (change.get("wanted") or {}).get("release"),
        "back": (change.get("back") or {}).get("release"),
        "lock": json.loads(lock) if lock else None,
        "epoch": (text(STATE + "/rollout/epoch") or "0").strip(),
        "journal": text(STATE + "/rollout/journal.jsonl") or "",
        "marker": text(STATE + "/activation.json"),
        "drop_in": os.path.exists("/run/systemd/system/" + UNIT + ".d/50-rackwell-gate.conf"),
        "temporary": [
            path
            for pattern in (ROOT + "/releases/.*", ROOT + "/releases/*.part*", "/root/.ansible/tmp/*", "/tmp/rackwell*")
            for path in glob.glob(pattern)
            if os.path.basename(path) not in (".", "..")
        ],
        "secret_in_logs": bool(secret) and any(secret in one for one in logs),
    }
    if told["health"] == 200:
        body = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 16}}
        told["answer"] = request("/generate", body)[1]
    print(json.dumps(told))


main()
