# SPDX-License-Identifier: Apache-2.0
"""The main job on the real engine: provision, prove, measure, roll, return, stop, start. Each gives what it saw."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import Any

import yaml
from place import CONTAINER, HERE, MODEL, PORT, UNIT, FailedError, Place, require, until

# the one of the catalogue that stands alone on these versions; what it does harm with is not asked for on a processor
PATCH = "flashinfer-python/trtllm-comm-jit-sm120"
RISK = "a toy model on a processor, which never asks for what it changes"
PATCHED = "engine-cpu-patched"
_CHECK = "import importlib.metadata as m; [print(f'{d.name}=={d.version}') for d in m.distributions()]"


def build(place: Place) -> str:
    """The release of a GPU host, and one with a patch, both from one lock."""
    spec = yaml.safe_load((HERE / "site/builds/engine-cpu.yml").read_text())
    patches = [{"name": PATCH, "accept_risk": RISK}]
    (place.site / f"builds/{PATCHED}.yml").write_text(yaml.safe_dump({**spec, "patches": patches}, sort_keys=False))
    shutil.copyfile(place.site / "builds/engine-cpu.lock", place.site / f"builds/{PATCHED}.lock")
    done = place.rackwell("build", "--all")
    require(done.code == 0, f"rackwell build ended with {done.code}: {done.problems}")
    place.keep()
    manifest = json.loads((place.site / ".rackwell/builds/engine-cpu/manifest.json").read_text())
    size = sum(wheel["size"] for wheel in manifest["wheels"])
    names = {wheel["project"] for wheel in manifest["wheels"]}
    wanted = {"torch", "triton", "sglang-kernel", "flashinfer-python", "sglang"}
    require(wanted <= names, "it is not the whole environment")
    return f"{len(manifest['wheels'])} wheels, {size / 1e9:.2f} GB; {PATCHED}: {PATCH}"


def provision(place: Place) -> str:
    """From nothing to a measured server. Without its model it ends before anything is started, and tells that."""
    told = []
    model = place.directory / "hosts/pve1/models/toy-llama/config.json"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        model.parent.chmod(0o755)
        early = place.rackwell("provision", CONTAINER, "--no-bench")
        require(early.code == 1, f"without a model it ended with {early.code}: {early.problems}")
        require("model" in early.problems, f"it does not tell of the model: {early.problems}")
        told.append(f"no model: {early.json['problems'][0]['code']}")
        told.append(place.model(_release(place)))
    done = place.rackwell("provision", CONTAINER)
    require(done.code == 0, f"rackwell provision ended with {done.code}: {done.problems}")
    told.append(f"{done.seconds:.0f} s")
    return "; ".join(told)


def _release(place: Place) -> str:
    return (place.site / ".rackwell/builds/engine-cpu").resolve().name


def again(place: Place) -> str:
    """A second run changes nothing."""
    before = place.show("InvocationID")
    done = place.rackwell("provision", CONTAINER)
    require(done.code == 0 and place.show("InvocationID") == before, f"it ended with {done.code}: {done.problems}")
    return f"{done.seconds:.0f} s, the same start serves"


def serving(place: Place) -> str:
    """Ready is not warm: a greedy and a sampled request were answered before the start counted as done."""
    lines = place.log().splitlines()
    asked = [line for line in lines if '"POST /v1/completions' in line]
    require(len(asked) >= 2, f"{len(asked)} completions stand in the log of a start that counts as done")
    require(any("The server is fired up" in line for line in lines), "the engine does not say that it is ready")
    installed = place.script(f'/opt/rackwell/current/env/bin/python -c "{_CHECK}"').splitlines()
    for wanted in ("sglang==0.5.16", "torch==2.11.0", "flashinfer-python==0.6.14"):
        require(wanted in installed, f"{wanted} is not installed")
    parts = place.parts()
    require({"detokenizer", "scheduler"} <= set(parts), f"the engine's processes: {sorted(parts)}")
    row = place.status()
    require((row["unit"], row["why"]) == ("active", ""), f"rackwell status: {row}")
    verified = place.rackwell("verify", CONTAINER, "--quick")
    require(verified.code == 0, f"rackwell verify ended with {verified.code}: {verified.problems}")
    return f"{len(installed)} packages; {', '.join(sorted(parts))}; {len(asked)} completions before and after ready"


def caches(place: Place) -> str:
    """What the engine compiles and keeps lies in the release's own cache directory, and nowhere else."""
    release = place.script("basename $(readlink /opt/rackwell/current)")
    homes = place.script("getent passwd rackwell | cut -d: -f6; echo /root").split()
    stray = place.script(
        f"find {' '.join(homes)} -xdev \\( -name .cache -o -name .triton -o -name .tvm-ffi -o -name deep_gemm \\) "
        "-user rackwell -print 2>/dev/null || true"
    )
    require(not stray, f"caches outside the release's directory: {stray}")
    kept = place.script(f"cd /var/cache/rackwell/{release} && ls -A && env -i du -sk .").split()
    environment = place.script(f"tr '\\0' '\\n' </proc/$(systemctl show -P MainPID {UNIT})/environ").splitlines()
    values = dict(line.partition("=")[::2] for line in environment)
    names = [name for name in values if name.endswith(("CACHE_DIR", "CACHE_HOME", "CACHE_PATH", "WORKSPACE_BASE"))]
    astray = [name for name in names if not values[name].startswith(f"/var/cache/rackwell/{release}")]
    require(not astray, f"these lead elsewhere: {astray}")
    return f"{', '.join(sorted(names))}; on disk: {' '.join(kept[:-2])}, {int(kept[-2]) / 1000:.0f} MB"


def bench(place: Place) -> str:
    """Measured by the release's own bench_serving, through an OpenAI backend, every request answered."""
    done = place.rackwell("bench", CONTAINER)
    require(done.code == 0, f"rackwell bench ended with {done.code}: {done.problems}")
    stored = max((place.site / ".rackwell/results" / CONTAINER).glob("*/bench.json"))
    result = json.loads(stored.read_text())
    points = result["points"]
    bad = [point for point in points if not point.get("valid")]
    require(points and not bad, f"points that do not count: {[point.get('reasons') for point in bad]}")
    raw = [gzip.decompress(path.read_bytes()).decode() for path in stored.parent.rglob("client.jsonl.gz")]
    backends = {json.loads(line)["backend"] for text in raw for line in text.splitlines()}
    require(backends and all(name.startswith("sglang-oai") for name in backends), f"it asked by {backends}")
    rate = ", ".join(f"{p['concurrency']}: {p['throughput']['output_tok_per_s']:.0f} tok/s" for p in points)
    return f"{rate}; {len(points)} points; asked by {', '.join(sorted(backends))}"


def roll(place: Place) -> str:
    """To a second release, with a patch of the catalogue in one of its wheels."""
    before = _current(place)
    done = place.rackwell(
        "roll", PATCHED, "--limit", CONTAINER, "--skip-gate", "bench", "--reason", "toy model on a processor",
        "--confirm-within", "900",
    )  # fmt: skip
    require(done.code == 0, f"rackwell roll ended with {done.code}: {done.problems}")
    after = _current(place)
    require(after != before, "the release is the same")
    manifest = json.loads(place.script("cat /opt/rackwell/current/manifest.json"))
    require([patch["name"] for patch in manifest["patches"]] == [PATCH], f"patches: {manifest['patches']}")
    require(place.serves(), "it does not serve")
    return f"{before[:12]} -> {after[:12]} in {done.seconds:.0f} s"


def rollback(place: Place) -> str:
    """Back to what ran before, verified in the same way."""
    before = _current(place)
    done = place.rackwell("rollback")
    require(done.code == 0, f"rackwell rollback ended with {done.code}: {done.problems}")
    after = _current(place)
    require(after != before and after == _release(place), f"{after[:12]} is not what ran before the roll")
    require(place.serves(), "it does not serve")
    return f"{before[:12]} -> {after[:12]} in {done.seconds:.0f} s"


def _current(place: Place) -> str:
    return place.script("basename $(readlink /opt/rackwell/current)")


#: asks for long answers, tells once all stream, and at the end how many came whole
_CLIENT = f"""
import json, threading, urllib.request
began, whole = threading.Semaphore(0), []
def ask(n):
    body = json.dumps({{"model": "toy", "prompt": "word " * n, "max_tokens": 120, "stream": True, "ignore_eos": True}})
    request = urllib.request.Request("http://127.0.0.1:{PORT}/v1/completions", body.encode(),
                                     {{"Content-Type": "application/json"}})
    with urllib.request.urlopen(request, timeout=600) as answer:
        lines = iter(answer)
        next(lines)
        began.release()
        if any(line.startswith(b"data: [DONE]") for line in lines):
            whole.append(n)
threads = [threading.Thread(target=ask, args=(n,)) for n in (3, 5, 7)]
for thread in threads: thread.start()
for _ in threads: began.acquire()
print("streaming", flush=True)
for thread in threads: thread.join()
print("whole", len(whole), flush=True)
"""


def drain(place: Place) -> str:
    """A stop lets the requests in flight finish; that the engine ends it by SIGKILL is no failure to anybody."""
    place.script("cat >/run/client.py", _CLIENT.encode())
    place.script("systemd-run --quiet --unit=engine-client --collect -p StandardOutput=truncate:/run/client.out "
                 "/usr/bin/python3 /run/client.py")  # fmt: skip
    until(lambda: "streaming" in place.script("cat /run/client.out 2>/dev/null || true"), 120, "requests stream")
    taken = place.script(f"s=$(date +%s); systemctl stop {UNIT}; echo $(($(date +%s) - s))")
    until(lambda: place.show("ActiveState", unit="engine-client.service")["ActiveState"] != "active", 60, "the client")
    said = place.script("cat /run/client.out").split()
    require(said[-2:] == ["whole", "3"], f"the client: {' '.join(said)}")
    shown = place.show("ActiveState", "Result", "ExecMainCode", "ExecMainStatus", "NRestarts")
    require(not place.of_unit(), "processes are left")
    row = place.status()
    require(row["unit"] == "stopped" and not row["why"], f"rackwell status tells of a failure: {row}")
    how = f"{shown['ActiveState']}, {shown['Result']}, status {shown['ExecMainStatus']}"
    return f"3 of 3 requests whole, stopped after {taken} s; systemd: {how}; rackwell status: {row['unit']}"


def start(place: Place) -> str:
    """And again."""
    done = place.rackwell("provision", CONTAINER, "--no-bench")
    require(done.code == 0 and place.serves(), f"rackwell provision ended with {done.code}: {done.problems}")
    return f"{done.seconds:.0f} s"


STEPS: dict[str, Any] = {
    one.__name__: one for one in (build, provision, again, serving, caches, bench, roll, rollback, drain, start)
}
__all__ = ["MODEL", "STEPS", "FailedError"]
