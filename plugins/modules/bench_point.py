#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One measured point of a benchmark sweep, beside the server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_point
short_description: Measure one concurrency of a serving benchmark
version_added: 0.1.0
description:
  - Runs the engine's own load generator beside the server, with GPU telemetry on the same clock, and returns numbers
    that were checked before they are believed.
  - The measurement runs in a transient unit of systemd. When the connection dies, the unit carries on, and the same
    O(run_id) and O(concurrency) find it again.
  - A measurement changes nothing on the host that anybody else relies on, so the module never reports a change.
  - A point that does not count (failed requests, short or empty answers, a dead server) fails the task, and the result
    is returned all the same.
options:
  run_id:
    description: Names the run. The same run and concurrency are measured once only.
    type: str
    required: true
  resume:
    description:
      - Whether a finished measurement of the same O(run_id), concurrency and options is returned instead of repeated.
    type: bool
    default: true
  concurrency:
    description: Streams that the client keeps in flight.
    type: int
    required: true
  num_prompts:
    description: Requests in all.
    type: int
    required: true
  input_tokens:
    description: Tokens of each prompt.
    type: int
    required: true
  output_tokens:
    description: Tokens asked of each answer.
    type: int
    required: true
  repeat:
    description: Number of this repeat of the same load. Each repeat is a measurement of its own.
    type: int
    default: 1
  seed:
    description: Seed of the prompts. Give each point of each run another one, so that no prompt comes twice.
    type: int
    default: 1
  client:
    description:
      - Whose load generator runs. V(bench-client) is the release in the slot C(bench-client). V(server) is the client
        of the release that serves, C(sglang.benchmark.serving) or C(sglang.bench_serving), whichever it has.
        V(aiperf) is the release in the slot C(bench-aiperf).
    type: str
    choices: [bench-client, server, aiperf]
    default: bench-client
  warmup:
    description:
      - What the server is asked before the clock starts. One greedy and one sampled request always come first.
    type: dict
    default: {}
    suboptions:
      requests:
        description: Requests that the client sends first. The default is that of O(warmup_requests).
        type: int
      seconds:
        description: For so long the server is kept under the point's load before that.
        type: float
        default: 0
  warmup_requests:
    description: As O(warmup.requests), which wins.
    type: int
    default: 2
  steady_share:
    description: The steady part of the window is that in which at least this share of the streams was in flight.
    type: float
    default: 0.9
  server_hz:
    description:
      - How often a second the server's own metrics are read. The thread that answers also handles the requests, so keep
        it rare. V(0) does not ask.
    type: float
    default: 1
  server_wait:
    description:
      - For so many seconds a server that is starting, or starts again by itself, is waited for before the measurement.
        A unit that failed or was stopped is not waited for.
    type: int
    default: 0
  sane:
    description: A prompt with a known answer, asked before and after the measurement, as the profile declares it.
    type: dict
    suboptions:
      prompt:
        description: The prompt.
        type: str
        required: true
      expect:
        description: Text that the answer must hold.
        type: str
        required: true
      max_tokens:
        description: Length of the answer.
        type: int
        default: 16
  sanity_answers:
    description: How many of the measured answers are looked at for garbage.
    type: int
    default: 32
  sample_hz:
    description: Telemetry samples a second.
    type: float
    default: 5
  point_timeout:
    description: Seconds after which the measurement is stopped.
    type: int
    default: 900
  host:
    description: Address of the server.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the server.
    type: int
    default: 30000
  served_name:
    description: Model name to ask for.
    type: str
    required: true
  api_key:
    description:
      - API key of the server, when it asks for one. It stands in a file that only root can read, while it is needed.
    type: str
    default: ""
  tokenizer:
    description: Directory of the tokenizer, usually that of the model.
    type: path
    required: true
  user:
    description: User that the client runs as.
    type: str
    default: rackwell
  root:
    description: Where the releases are.
    type: path
    default: /opt/rackwell
  state:
    description: Where measurements are kept on the host.
    type: path
    default: /var/lib/rackwell/results
  server_unit:
    description: Unit of the server. Its restarts tell a dead server from a failed client.
    type: str
    default: rackwell-inference.service
  tolerate:
    description:
      - Reasons that are remarks instead, so that the point counts although they hold. For machines where they are
        known, such as one of few cores that other work shares.
    type: list
    elements: str
    choices: [bench-client-bound, bench-throttled, bench-gpus-shared]
    default: []
attributes:
  check_mode:
    description: Says what would run.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: Measure sixteen streams
  rackwell.gpu.bench_point:
    run_id: 20261129T101500Z-4f2a
    concurrency: 16
    num_prompts: 64
    input_tokens: 1024
    output_tokens: 256
    served_name: glm-5
    tokenizer: /srv/models/glm-5
"""

RETURN = r"""
rackwell_result:
  description:
    - The point, schema C(rackwell.bench_point/1).
    - RV(rackwell_result.status) is V(measured), V(failed) (the client), V(crashed) (the server) or V(planned)
      (check mode).
    - RV(rackwell_result.valid) says whether the numbers may be used, RV(rackwell_result.reasons) why not.
  returned: always
  type: dict
rackwell_error:
  description: What, where, why and fix.
  returned: failure
  type: dict
"""

import contextlib
import glob
import json
import os
import pwd
import re
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import (
    bench_client,
    bench_clients,
    bench_clock,
    bench_reading,
    bench_server,
    bench_unit,
)
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail

#: The options that make a measurement what it is: a finished one is returned again only when all of them are equal.
IDENTITY = (
    "concurrency",
    "num_prompts",
    "input_tokens",
    "output_tokens",
    "repeat",
    "seed",
    "client",
    "warmup_requests",
    "warmup",
    "host",
    "port",
    "served_name",
    "tokenizer",
)
POSITIVE = ("concurrency", "num_prompts", "input_tokens", "output_tokens", "repeat", "point_timeout", "sample_hz")


class Point:
    """One measurement: started, or found again, and read."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.options = dict(module.params)  # type: Dict[str, Any]
        warmup = dict(self.options["warmup"] or {})
        if warmup.get("requests") is not None:
            self.options["warmup_requests"] = warmup["requests"]
        self.warmup_seconds = float(warmup.get("seconds") or 0)
        self.name = bench_unit.point_name(self.options)
        self.unit = bench_unit.name(self.options["run_id"], self.name)
        self.directory = os.path.join(self.options["state"], self.options["run_id"], self.name)
        # beside the directory and not in it: the service user can read in there
        self.secret = self.directory + ".env"
        self.client, self.remark = bench_clients.choose(self.options["client"], self.options["root"])
        self.probe_env = os.path.join(self.options["root"], "probe", "env")
        self.probe = os.path.join(self.probe_env, "bin", "python")
        self.server = bench_server.Server(self.run, self.options)
        try:
            self.owner = pwd.getpwnam(self.options["user"]).pw_uid
        except KeyError:  # check_host tells; until then no file is believed
            self.owner = -1
        self.reading = bench_reading.Reading(self.directory, self.options, self.client, self.server, self.owner)

    def run(self, argv: List[str]) -> Tuple[int, str, str]:
        """A command whose failure is for the caller to judge."""
        code, out, err = self.module.run_command(argv, check_rc=False)
        return int(code), str(out), str(err)

    def path(self, name: str) -> str:
        """A file of this measurement."""
        return os.path.join(self.directory, name)

    def client_path(self, name: str) -> str:
        """A file that the service user writes."""
        return os.path.join(self.directory, bench_unit.CLIENT, name)

    def watch(self) -> Optional[str]:
        """The probe's program that runs a client and measures its event loop; None when the probe has none."""
        found = glob.glob(os.path.join(self.probe_env, "lib", "python3*", "site-packages", "rackwell/probe/loadgen.py"))
        return found[0] if found else None

    def argv(self) -> List[str]:
        """The recorder around the watch around the client."""
        folder = os.path.join(self.directory, bench_unit.CLIENT)
        return list(bench_clients.recorded(self.client, self.options, self.probe, self.watch(), folder))

    def identity(self) -> Dict[str, Any]:
        """What is asked, as kept beside the measurement."""
        return {key: self.options[key] for key in IDENTITY}

    def finished(self) -> bool:
        """Whether this very measurement was taken already."""
        return (
            bool(self.options["resume"])
            and bench_unit.outcome(self.directory, self.owner) is not None
            and bench_unit.read_json(self.path("request.json")) == self.identity()
        )

    def check_options(self) -> None:
        """End with an error where what is asked makes no sense."""
        options = self.options
        if not bench_unit.RUN_ID.match(options["run_id"]):
            self.fail(
                "bench-run-id",
                "the run id cannot be part of a unit's name",
                where="run_id",
                why=repr(options["run_id"]),
                fix="use letters, digits, dot, dash and underscore, 64 at most",
            )
        for key in POSITIVE:
            if options[key] <= 0:
                why = "it is %s" % options[key]
                self.fail("bench-option", key + " must be positive", where=key, why=why, fix="correct the bench file")
        if not 0 < options["steady_share"] <= 1:
            why = "it is %g" % options["steady_share"]
            fix = "give a share of the streams, such as 0.9"
            self.fail("bench-option", "steady_share must be above 0 and at most 1", "steady_share", why, fix)
        refusal = self.client.refusal(options)
        if refusal is not None:
            self.fail("bench-client", refusal[0], where="client", why=refusal[1], fix=refusal[2])

    def check_host(self) -> None:
        """End with an error where a measurement cannot even begin."""
        options = self.options
        for path, build in ((self.client.python, self.client.build), (self.probe, "probe")):
            if not os.path.exists(path):
                self.fail(
                    "bench-not-staged",
                    "the %s release is not on this host" % build,
                    where=path,
                    why="its interpreter is absent",
                    fix="rackwell provision, or the playbook rackwell.gpu.bench, which stages it",
                )
        if self.watch() is None:
            self.fail(
                "bench-not-staged",
                "the probe on this host is of an older rackwell",
                where=self.probe_env,
                why="it has no rackwell/probe/loadgen.py, which watches the load generator",
                fix="rackwell provision, which stages this one's",
            )
        try:
            pwd.getpwnam(options["user"])
        except KeyError:
            what = "user %s does not exist" % options["user"]
            self.fail("bench-user", what, where="user", fix="provision the container first")
        if not os.path.isdir(options["tokenizer"]):
            self.fail(
                "bench-tokenizer",
                "the tokenizer's directory is not there",
                where=options["tokenizer"],
                fix="mount the model's directory, or correct model.path in the profile",
            )

    def fail(self, code: str, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        """End with an error, and with a result that says that there are no numbers."""
        reasons = [bench_client.reason(code, what, why, fix)]
        result = self.reading.result("failed", reasons)
        fail(self.module, code, what, where=where, why=why, fix=fix, rackwell_result=result)

    def end(self, result: Dict[str, Any]) -> None:
        """End with a result: the task fails where it does not count."""
        if result["valid"]:
            done(self.module, changed=False, result=result)
        first = result["reasons"][0]
        where = "concurrency %d" % result["concurrency"]
        fail(self.module, first["code"], first["what"], where, first["why"], first["fix"], rackwell_result=result)

    def prepare(self) -> Dict[str, Any]:
        """Bring the server to where the clock may start. What is to be kept of that: the context."""
        address = "%(host)s:%(port)s" % self.options
        why = self.server.wait(self.options["server_wait"])
        if why:
            self.fail(
                "server-not-reachable", "no server answers", address, why, "rackwell status; then rackwell provision"
            )
        self.let_others_end()
        before = self.server.state()
        asked = self.server.known_answer(self.options["sane"], "before the measurement")
        why = self.server.warm_up(self.warmup_seconds)
        if why:
            what = "the server does not answer the requests of the warm-up"
            fix = "`rackwell status`; `journalctl -u %s`" % self.server.unit
            if self.server.died(before):
                result = self.reading.crashed([bench_client.reason("bench-warmup", what, why, fix)])
                self.end(result)
            self.fail("bench-warmup", what, address, why, fix)
        return {
            "server": before,
            "started_utc": bench_clock.utc_now(),
            "asked": asked,
            "flush": self.server.flush(),
            "remarks": [self.remark] if self.remark else [],
        }

    def environment(self) -> Dict[str, str]:
        """Of the unit; everybody on the host can see it."""
        return {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": self.client_path("hf"),
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self) -> None:
        """Run the measurement to its end."""
        options = self.options
        context = self.prepare()
        entry = pwd.getpwnam(options["user"])
        try:
            bench_unit.make_directory(options["state"], options["run_id"], self.name, entry.pw_uid, entry.pw_gid)
        except OSError as error:
            self.fail(
                "bench-directory",
                "the measurement's directory cannot be made",
                where=str(error.filename or self.directory),
                why=error.strerror or str(error),
                fix="make it root's alone, and no link: chown root: DIR; chmod go-w DIR; or free space",
            )
        bench_unit.write_text(self.path("context.json"), json.dumps(context))
        bench_unit.write_text(self.path("request.json"), json.dumps(self.identity(), sort_keys=True))
        if options["api_key"]:
            quoted = re.sub(r'([\\"$`])', r"\\\1", options["api_key"])
            bench_unit.write_text(self.secret, 'OPENAI_API_KEY="%s"\n' % quoted, 0o600)
        code, _out, err = self.run(
            bench_unit.systemd_run(
                self.unit,
                self.directory,
                options["user"],
                options["point_timeout"],
                self.environment(),
                [os.path.join(self.client.directory, "release.env"), self.secret],
                self.argv(),
            )
        )
        if bench_unit.outcome(self.directory, self.owner) is None:
            self.fail(
                "bench-unit",
                "systemd did not run the measurement",
                where=self.unit,
                why=(err.strip() or "systemd-run ended with %d" % code)[-400:],
                fix="read `journalctl -u %s`" % self.unit,
            )

    def let_others_end(self) -> None:
        """Two measurements at a time would both be of half a server."""
        for unit in bench_unit.others(self.run, self.unit):
            if not bench_unit.wait(self.run, unit, self.options["point_timeout"] + bench_unit.STOP_S):
                self.fail(
                    "bench-running",
                    "another measurement of this server does not end",
                    where=unit,
                    why="an interrupted run left it, or somebody else measures",
                    fix="wait for it, or: systemctl stop %s" % unit,
                )

    def measure(self) -> Dict[str, Any]:
        """The result: of a measurement in progress, of a finished one, or of a new one."""
        attached = bench_unit.active(self.run, self.unit)
        try:
            self.settle(attached)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.secret)
        return dict(self.reading.read(), attached=attached)

    def settle(self, attached: bool) -> None:
        """Come to where the measurement is over."""
        if attached:
            patience = self.options["point_timeout"] + bench_unit.STOP_S
            if not bench_unit.wait(self.run, self.unit, patience):
                self.fail(
                    "bench-unit",
                    "an earlier try at this point does not end",
                    where=self.unit,
                    why="it is past its deadline",
                    fix="systemctl stop %s" % self.unit,
                )
        elif not self.finished():
            self.start()


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "required": True},
            "resume": {"type": "bool", "default": True},
            "concurrency": {"type": "int", "required": True},
            "num_prompts": {"type": "int", "required": True},
            "input_tokens": {"type": "int", "required": True},
            "output_tokens": {"type": "int", "required": True},
            "repeat": {"type": "int", "default": 1},
            "seed": {"type": "int", "default": 1},
            "client": {"type": "str", "choices": ["bench-client", "server", "aiperf"], "default": "bench-client"},
            "warmup": {
                "type": "dict",
                "default": {},
                "options": {"requests": {"type": "int"}, "seconds": {"type": "float", "default": 0}},
            },
            "warmup_requests": {"type": "int", "default": 2},
            "steady_share": {"type": "float", "default": 0.9},
            "server_hz": {"type": "float", "default": 1},
            "server_wait": {"type": "int", "default": 0},
            "sane": {
                "type": "dict",
                "options": {
                    "prompt": {"type": "str", "required": True},
                    "expect": {"type": "str", "required": True},
                    "max_tokens": {"type": "int", "default": 16},
                },
            },
            "sanity_answers": {"type": "int", "default": 32},
            "tolerate": {
                "type": "list",
                "elements": "str",
                "choices": ["bench-client-bound", "bench-throttled", "bench-gpus-shared"],
                "default": [],
            },
            "sample_hz": {"type": "float", "default": 5},
            "point_timeout": {"type": "int", "default": 900},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 30000},
            "served_name": {"type": "str", "required": True},
            "api_key": {"type": "str", "default": "", "no_log": True},
            "tokenizer": {"type": "path", "required": True},
            "user": {"type": "str", "default": "rackwell"},
            "root": {"type": "path", "default": "/opt/rackwell"},
            "state": {"type": "path", "default": "/var/lib/rackwell/results"},
            "server_unit": {"type": "str", "default": "rackwell-inference.service"},
        },
        supports_check_mode=True,
    )
    point = Point(module)
    point.check_options()
    if module.check_mode:
        done(module, changed=False, result=point.reading.result("planned"), command=point.argv())
    point.check_host()
    point.end(point.measure())


if __name__ == "__main__":
    main()
