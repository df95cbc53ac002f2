# SPDX-License-Identifier: Apache-2.0
"""The server: what runs, with which flags, as whom, where it listens, and what it answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from testinfra.host import Host

from rackwell.acceptance.suite.asking import output, python, run, show
from rackwell.acceptance.suite.claims import Claims

Want = dict[str, Any]
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
ANYWHERE = {"0.0.0.0", "::", "*", "[::]"}  # noqa: S104 - read, not bound
#: lines of a server that does not serve, or not what it should
FATAL = (
    r"Scheduler hit an exception",
    r"Traceback \(most recent call last\)",
    r"CUDA error|cudaError|CUBLAS_STATUS_[A-Z_]*(FAILED|ERROR)|illegal memory access|device-side assert",
    r"Segmentation fault|Fatal Python error|core dumped",
    r"out of memory|OutOfMemoryError|MemoryError",
    r"NCCL (error|WARN .*(Error|fail))|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
    r"[Ww]atchdog (timeout|caught)|Watchdog .*timed out",
    r"Child process unexpectedly failed|killed by signal|SIGQUIT received",
    r"status=226/NAMESPACE|Main process exited",
)
#: lines that may quote what a client wrote
QUOTES = r'Receive:|Finish:|GenerateReqInput|"(GET|POST|PUT) |server_args='
_PROCESS = """
import json, os, sys
pid = json.loads(sys.argv[1])[0]
base = "/proc/%d/" % pid
status = dict(line.split(":", 1) for line in open(base + "status") if ":" in line)
words = open(base + "cmdline", "rb").read().decode("utf-8", "replace").split("\\0")[:-1]
names = {}
for entry in open(base + "environ", "rb").read().decode("utf-8", "replace").split("\\0"):
    name, equals, value = entry.partition("=")
    if equals:
        names[name] = value
secret = json.loads(sys.argv[1])[1]
hidden = json.loads(sys.argv[1])[2]
shown, hide = [], False
for word in words:
    flag = word.partition("=")[0]
    if hide and not word.startswith("--"):
        shown.append("(hidden)")
        continue
    hide = flag.startswith("--") and flag[2:] in secret
    shown.append(flag if hide else word)
wanted = json.loads(sys.argv[1])[3]
print(json.dumps({"words": shown, "cwd": os.readlink(base + "cwd"), "exe": os.readlink(base + "exe"),
                  "uid": int(status["Uid"].split()[1]), "no_new_privs": status.get("NoNewPrivs", "").strip(),
                  "environment": {name: names.get(name) for name in wanted},
                  "missing": [name for name in hidden if not names.get(name)]}))
"""
_ASK = """
import http.client, json, sys
host, port, path, body, seconds = json.loads(sys.argv[1])
try:
    # the engine's own key goes no further than this container
    with open("/etc/rackwell/inference.secrets") as stream:
        key = str(json.load(stream).get("api-key") or "")
except (OSError, ValueError):
    key = ""
headers = {"Content-Type": "application/json"}
if key:
    headers["Authorization"] = "Bearer " + key
try:
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode("utf-8", "replace")[:20000]]))
except (OSError, http.client.HTTPException) as error:
    print(json.dumps([0, str(error) or type(error).__name__]))
"""
_CONNECT = """
import json, socket, sys
host, port = json.loads(sys.argv[1])
try:
    socket.create_connection((host, port), timeout=5).close()
    print("true")
except OSError:
    print("false")
"""
_SECRETS = """
import json, os, stat, sys
found = []
for base, folders, files in os.walk("/etc/rackwell"):
    for name in folders + files:
        path = os.path.join(base, name)
        told = os.lstat(path)
        if not stat.S_ISLNK(told.st_mode):
            found.append([path, "0%o" % stat.S_IMODE(told.st_mode), told.st_uid, stat.S_ISDIR(told.st_mode)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def pid(lxc: Host, want: Want) -> int:
    return int(show(lxc, want["server"]["unit"], "MainPID")["MainPID"] or 0)


@pytest.fixture
def process(pid: int, lxc: Host, want: Want, claim: Claims) -> dict[str, Any]:
    server = want["server"]
    claim(pid > 0, expected="a process", found="" if pid else "the server does not run", fix=want["commands"]["logs"])
    found: dict[str, Any] = python(
        lxc,
        _PROCESS,
        pid,
        server["secret_flags"],
        server["secret_environment"],
        sorted(server["environment"]),
    )
    return found


def test_active(lxc: Host, want: Want, claim: Claims) -> None:
    """The unit is active, enabled, and was not restarted by itself."""
    names = ("ActiveState", "SubState", "UnitFileState", "NRestarts", "Result", "FragmentPath", "NeedDaemonReload")
    unit = show(lxc, want["server"]["unit"], *names)
    held = unit["Result"] == "exec-condition"
    fix = want["commands"]["release_gate"] if held else want["commands"]["logs"]
    found = f"{unit['ActiveState']} ({unit['SubState']}), result {unit['Result']}"
    claim(unit["ActiveState"] == "active", expected="active", found=found, fix=fix, held=held)
    good = unit["UnitFileState"] == "enabled"
    claim(good, expected="enabled", found=unit["UnitFileState"], fix=f"systemctl enable {want['server']['unit']}")
    fix = f"{want['commands']['logs']} tells why it died"
    claim(unit["NRestarts"] == "0", expected="no restarts", found=f"{unit['NRestarts']} restarts", fix=fix)
    good = unit["NeedDaemonReload"] == "no"
    found = "unit as loaded" if good else "the unit's file was changed since"
    claim(good, expected="the unit as loaded", found=found, fix=want["commands"]["provision"])


def test_unit_file(lxc: Host, want: Want, claim: Claims) -> None:
    """The unit's file is root's, and nobody else can write it."""
    path = f"/etc/systemd/system/{want['server']['unit']}"
    found = output(lxc, "stat -c '%%U %%a' %s", path)
    owner, mode = found.split()
    good = owner == "root" and not int(mode, 8) & 0o022
    claim(good, expected="root's, writable by nobody else", found=found, fix=f"chown root {path}; chmod 0644 {path}")


def test_release(process: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """What runs was started from the declared release."""
    place = f"{want['release']['root']}/releases/{want['release']['digest']}"
    fix = f"{want['commands']['provision']} --allow-restart"
    claim(process["cwd"] == place, expected=place, found=process["cwd"], fix=fix)


def test_flags(process: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """What runs has the profile's flags, all of them and no others."""
    declared = {name: _values(value) for name, value in want["server"]["flags"].items() if value not in (None, False)}
    found: dict[str, list[str]] = {}
    name = ""
    for word in process["words"][process["words"].index("sglang.launch_server") + 1 :]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    wrong = [
        f"--{one} {' '.join(values)}".strip()
        for one, values in declared.items()
        if one not in found or not _same(found[one], values)
    ]
    more = sorted(set(found) - set(declared))
    seen = [f"--{one.split()[0][2:]} {' '.join(found.get(one.split()[0][2:], ['is absent']))}" for one in wrong]
    seen += [f"--{one} is not declared" for one in more]
    expected = wrong or f"the {len(declared)} flags of the profile"
    fix = f"{want['commands']['provision']} --allow-restart"
    claim(not wrong and not more, expected=expected, found=seen or f"{len(found)} flags as declared", fix=fix)


def _values(value: Any) -> list[str]:
    return [] if value is True else [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _same(found: list[str], wanted: list[str]) -> bool:
    """A profile's 0.850 is 0.85."""
    if found == wanted:
        return True
    try:
        return [float(one) for one in found] == [float(one) for one in wanted]
    except ValueError:
        return False


def test_environment(process: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """What runs has the profile's environment."""
    declared = want["server"]["environment"]
    if not declared and not want["server"]["secret_environment"]:
        pytest.skip("the profile has no environment")
    wrong = {name for name, value in declared.items() if process["environment"].get(name) != value}
    found = [f"{name}={process['environment'].get(name, '(absent)')}" for name in sorted(wrong)]
    found += [f"{name} is absent" for name in process["missing"]]
    expected = [f"{name}={declared[name]}" for name in sorted(wrong)] or f"{len(declared)} variables as declared"
    fix = f"{want['commands']['provision']} --allow-restart"
    claim(not found, expected=expected, found=found or f"{len(declared)} variables as declared", fix=fix)


def test_user(process: dict[str, Any], lxc: Host, want: Want, claim: Claims) -> None:
    """What runs is the service user's, and can gain no rights."""
    user = want["server"]["user"]
    uid = int(output(lxc, "id -u %s", user))
    good = process["uid"] == uid and uid != 0
    claim(good, expected=f"{user} ({uid})", found=f"uid {process['uid']}", fix=want["commands"]["provision"])
    good = process["no_new_privs"] == "1"
    claim(
        good, expected="NoNewPrivs 1", found=f"NoNewPrivs {process['no_new_privs']}", fix=want["commands"]["provision"]
    )


def test_listens(pid: int, lxc: Host, want: Want, claim: Claims) -> None:
    """The API listens on the declared address, and on no other."""
    server = want["server"]
    told = output(lxc, "ss -H -l -t -n")
    locals_ = [line.split()[3] for line in told.splitlines() if len(line.split()) > 3]
    found = {
        address.strip("[]").split("%")[0]
        for address, _, port in (one.rpartition(":") for one in locals_)
        if port == str(server["port"])
    }
    wanted = {server["host"].strip("[]")}
    if wanted & LOOPBACK:
        good = bool(found) and found <= LOOPBACK
    elif wanted & ANYWHERE:
        good = bool(found & ANYWHERE)
    else:
        good = found == wanted
    fix = f"server.host of the profile, then {want['commands']['provision']} --allow-restart"
    claim(
        good,
        expected=f"{server['host']}:{server['port']}",
        found=found or f"nothing listens on {server['port']}",
        fix=fix,
    )


def test_not_reachable(pve: Host, want: Want, claim: Claims) -> None:
    """From the Proxmox host nobody reaches an API that listens on loopback only."""
    server = want["server"]
    if server["host"] not in LOOPBACK:
        pytest.skip(f"it is declared to listen on {server['host']}")
    address = want["lxc"]["ip"].split("/")[0]
    reached = python(pve, _CONNECT, address, server["port"])
    found = f"{address}:{server['port']} is {'open' if reached else 'closed'}"
    fix = "see who forwards the port; the API is for the proxy in front of it alone"
    claim(not reached, expected="closed", found=found, fix=fix)


def _ask(lxc: Host, want: Want, path: str, body: Any = None, seconds: int = 60) -> tuple[int, str]:
    host = want["server"]["host"].strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
    status, text = python(lxc, _ASK, host, want["server"]["port"], path, body, seconds, seconds=seconds + 10)
    return int(status), str(text)


@pytest.mark.usefixtures("process")
def test_health(lxc: Host, want: Want, claim: Claims) -> None:
    """/health answers, and the model has the declared name."""
    status, text = _ask(lxc, want, "/health")
    claim(status == 200, expected="200", found=f"{status} {text[:100]}".strip(), fix=want["commands"]["logs"])
    status, text = _ask(lxc, want, "/v1/models")
    names = re.findall(r'"id"\s*:\s*"([^"]*)"', text)
    good = want["server"]["served_name"] in names
    claim(good, expected=want["server"]["served_name"], found=names or text, fix=want["commands"]["provision"])


@pytest.mark.usefixtures("process")
def test_answer(lxc: Host, want: Want, claim: Claims) -> None:
    """A greedy request gets the known answer, twice the same."""
    sane = want["server"]["sane"]
    body = {
        "model": want["server"]["served_name"],
        "prompt": sane["prompt"],
        "max_tokens": sane["max_tokens"],
        "temperature": 0,
    }
    fix = f"{want['commands']['verify']}; a model that answers wrongly must not serve: see docs/diagnose.md"
    answers = []
    for _ in range(2):
        status, text = _ask(lxc, want, "/v1/completions", body, 300)
        claim(status == 200, expected="200", found=f"{status} {text[:200]}" if status != 200 else "200", fix=fix)
        answers.append(re.sub(r'\\"', "'", "".join(re.findall(r'"text"\s*:\s*"((?:[^"\\]|\\.)*)"', text))))
    found = [repr(answer) for answer in dict.fromkeys(answers)]
    claim(all(sane["expect"] in one for one in answers), expected=f"text with {sane['expect']!r}", found=found, fix=fix)


def test_journal(lxc: Host, want: Want, claim: Claims) -> None:
    """The journal of this start holds no line of a server that fails."""
    invocation = show(lxc, want["server"]["unit"], "InvocationID")["InvocationID"]
    fix = want["commands"]["logs"]
    claim(bool(invocation), expected="a start", found="" if invocation else "it was never started", fix=fix)
    code, told = run(
        lxc,
        "journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID=%s + INVOCATION_ID=%s "
        "| grep -aEv -e %s | grep -aE -m 3 -e %s; true",
        invocation,
        invocation,
        QUOTES,
        "|".join(f"({pattern})" for pattern in FATAL),
        seconds=120,
    )
    fix = f"rackwell diagnose {want['container']} explains it"
    claim(not told, expected="none", found=told.splitlines()[0] if told else f"none (exit {code})", fix=fix)


def test_secrets(lxc: Host, want: Want, claim: Claims) -> None:
    """What is in /etc/rackwell is root's; the environment's file and the proxy's keys are for root alone."""
    found = python(lxc, _SECRETS)
    wrong = [
        f"{path} has mode {mode}, owner {uid}"
        for path, mode, uid, _ in found
        if uid != 0
        or int(mode, 8) & 0o022
        or (
            (path.endswith((".env", ".secrets")) or path.startswith("/etc/rackwell/api-proxy")) and int(mode, 8) & 0o077
        )
    ]
    fix = "chown root and chmod 0600 it, and change what it held: others could read it"
    keys = "/etc/rackwell/inference.secrets"
    there = any(path == keys for path, *_ in found)
    if want["server"]["secret_flags"]:
        claim(there, expected=f"{keys} with the profile's keys", found="there" if there else "it is missing", fix=fix)
    claim(bool(found), expected="files", found=f"{len(found)} files and folders", fix=want["commands"]["provision"])
    claim(not wrong, expected="root's alone", found=wrong or "root's alone", fix=fix)
