# SPDX-License-Identifier: Apache-2.0
"""The load generators that can be used: where each one is, what it is told, and how its output is read.

To add one, write a class with the methods of :class:`Client` and put it into :data:`CLIENTS`. Every output is read into
the one shape that ``sglang.bench_serving --output-details`` writes (:func:`bench_client.summarise` says which keys), so
that all clients are judged alike.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import bench_aiperf, bench_client, bench_unit

#: what the recorder and the watch write beside the client's own output
TELEMETRY, WATCH = "telemetry.json", "loadgen.json"
#: modules of the engine's own client, the newer name first
_SGLANG = ("sglang.benchmark.serving", "sglang.bench_serving")
#: what the engine's client imports and a slim server environment may lack
_SGLANG_NEEDS = ("aiohttp", "numpy", "requests", "tqdm", "transformers")


def packages(env: str) -> str:
    """site-packages of an environment; empty when there is none."""
    library = os.path.join(env, "lib")
    for python in sorted(os.listdir(library)) if os.path.isdir(library) else []:
        found = os.path.join(library, python, "site-packages")
        if os.path.isdir(found):
            return found
    return ""


def version(env: str, package: str) -> Optional[str]:
    """Version of an installed package; None when it is not."""
    where = packages(env)
    pattern = re.compile(r"%s-(.+)\.dist-info" % re.escape(package.replace("-", "_")))
    for entry in sorted(os.listdir(where)) if where else []:
        found = pattern.fullmatch(entry)
        if found:
            return found.group(1)
    return None


class Client:
    """The engine's own load generator, in the release that is staged for it.

    Attributes:
        slot: directory below the root of the releases. build: what has to be staged when it is not there.
        watched: whether it runs under the probe's watch, which measures the client's event loop.
        start_line, warm_line: what it prints when its warm-up is over, and when that begins.
        pause: seconds from the first of these to its clock.
    """

    slot, build = "bench-client", "bench-client"
    watched = True
    warm_line = "Starting warmup with"
    start_line = bench_client.START_PATTERN
    end_line = bench_client.END_PATTERN
    pause = bench_client.PAUSE_S
    package = "sglang"

    def __init__(self, root: str) -> None:
        self.root = root

    @property
    def directory(self) -> str:
        """The release: its environment is in ``env``."""
        return os.path.join(self.root, self.slot)

    @property
    def env(self) -> str:
        """The environment."""
        return os.path.join(self.directory, "env")

    @property
    def python(self) -> str:
        """Its interpreter."""
        return os.path.join(self.env, "bin", "python")

    def module(self) -> str:
        """What is run with ``python -m``."""
        where = packages(self.env)
        for name in _SGLANG:
            if where and os.path.isfile(os.path.join(where, *name.split(".")) + ".py"):
                return name
        return _SGLANG[-1]

    def about(self) -> Dict[str, Optional[str]]:
        """Name and version, for the record."""
        return {"name": self.module(), "version": version(self.env, self.package)}

    def refusal(self, options: Mapping[str, Any]) -> Optional[Tuple[str, str, str]]:
        """What, why and fix where this client cannot do what is asked; None when it can."""
        del options
        return None

    def arguments(self, options: Mapping[str, Any], folder: str) -> List[str]:
        """What stands behind the module's name. ``folder``: where it writes."""
        return list(bench_client.arguments(options, os.path.join(folder, "out.jsonl")))

    def command(self, options: Mapping[str, Any], folder: str) -> List[str]:
        """The whole command line."""
        return [self.python, "-m", self.module(), *self.arguments(options, folder)]

    def outputs(self) -> List[str]:
        """Files that it leaves and that are removed once they are read."""
        return ["out.jsonl"]

    def read(self, folder: str, owner: int) -> Optional[Dict[str, Any]]:
        """What it measured; None when it left nothing."""
        text = bench_unit.read_text(os.path.join(folder, "out.jsonl"), owner)
        found = bench_client.parse_output(text)
        return None if found is None else dict(found)


class ServersOwn(Client):
    """The client of the release that serves, where that environment can run it."""

    slot = "current"

    def usable(self) -> bool:
        """Whether the release has it, with all that it imports."""
        where = packages(self.env)
        names = [os.path.join(*name.split(".")) + ".py" for name in _SGLANG]
        return (
            bool(where)
            and any(os.path.isfile(os.path.join(where, name)) for name in names)
            and all(os.path.isdir(os.path.join(where, name)) for name in _SGLANG_NEEDS)
        )


class Aiperf(Client):
    """NVIDIA's aiperf (its command line and files as of 0.13.0), in a release of its own."""

    slot, build = "bench-aiperf", "bench-aiperf"
    watched = False
    warm_line = start_line = end_line = "\0"  # its processes say nothing that could be relied on
    pause = 0.0
    package = "aiperf"

    def module(self) -> str:
        """What is run with ``python -m``."""
        return "aiperf"

    def refusal(self, options: Mapping[str, Any]) -> Optional[Tuple[str, str, str]]:
        """It takes a key on its command line only, where everybody on the host can read it."""
        if not options.get("api_key"):
            return None
        return (
            "aiperf cannot be given an API key in secret",
            "it takes one on its command line, which everybody on the host can read",
            "measure with client: bench-client",
        )

    def arguments(self, options: Mapping[str, Any], folder: str) -> List[str]:
        """A closed loop over prompts of one length, answers of one length, every record kept."""
        extra = {"ignore_eos": True, "min_tokens": options["output_tokens"], "temperature": 0}
        return [
            "profile",
            "--model", str(options["served_name"]),
            "--url", "http://%s:%s" % (options["host"], options["port"]),
            "--endpoint-type", "completions",
            "--streaming",
            "--tokenizer", str(options["tokenizer"]),
            "--concurrency", str(options["concurrency"]),
            "--request-count", str(options["num_prompts"]),
            "--warmup-request-count", str(max(1, int(options["warmup_requests"]))),
            "--isl", str(options["input_tokens"]),
            "--isl-stddev", "0",
            "--osl", str(options["output_tokens"]),
            "--osl-stddev", "0",
            "--use-legacy-max-tokens",
            "--extra-inputs", json.dumps(extra, separators=(",", ":")),
            "--random-seed", str(options["seed"]),
            "--use-server-token-count",
            "--export-level", "records",
            "--no-gpu-telemetry",
            "--no-server-metrics",
            "--ui", "none",
            "--artifact-dir", folder,
        ]  # fmt: skip

    def outputs(self) -> List[str]:
        """Files that are removed once they are read."""
        return ["profile_export.jsonl"]

    def read(self, folder: str, owner: int) -> Optional[Dict[str, Any]]:
        """Its records, one a line, in the engine's client's shape."""
        found = bench_aiperf.read(bench_unit.read_text(os.path.join(folder, "profile_export.jsonl"), owner))
        return None if found is None else dict(found)


#: value of the module's option ``client`` -> class
CLIENTS = {"bench-client": Client, "server": ServersOwn, "aiperf": Aiperf}


def choose(name: str, root: str) -> Tuple[Client, str]:
    """The client, and a remark where it is not the one that was asked for."""
    client = CLIENTS[name](root)
    if isinstance(client, ServersOwn) and not client.usable():
        return Client(root), "The release that serves cannot run its load generator: that of bench-client measured."
    return client, ""


def recorded(client: Client, options: Mapping[str, Any], probe: str, watch: Optional[str], folder: str) -> List[str]:
    """The command that a measurement runs: the recorder around the watch around the client.

    Args:
        probe: interpreter of the probe. watch: its ``loadgen.py``. folder: where all three write.
    """
    recorder = [probe, "-m", "rackwell.probe", "record", "--out", os.path.join(folder, TELEMETRY)]
    recorder += ["--hz", "%g" % options["sample_hz"]]
    if client.watched:
        recorder += ["--window-start-pattern", client.start_line]
    if options["server_hz"] > 0:
        recorder += ["--server", "%(host)s:%(port)s" % options, "--server-hz", "%g" % options["server_hz"]]
    command = client.command(options, folder)
    if client.watched and watch is not None:
        told = ["--report", os.path.join(folder, WATCH), "--requests", str(options["num_prompts"])]
        command = [client.python, watch, *told, client.module(), *client.arguments(options, folder)]
    return [*recorder, "--", *command]
