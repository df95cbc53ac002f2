# SPDX-License-Identifier: Apache-2.0
"""The module: what it starts, what it finds again, and what it says of each end that a measurement can take."""

from __future__ import annotations

import getpass
import gzip
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible_collections.rackwell.gpu.plugins.module_utils import bench_server, bench_unit
from ansible_collections.rackwell.gpu.plugins.modules import bench_point

from .conftest import DATA, record
from .fake_engine import Engine

FAKE = Path(__file__).with_name("fake_systemd.py")


class Host:
    """A target with a staged client, a listening server, and systemd played by a script."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.plan = tmp_path / "plan"
        self.root = tmp_path / "opt"
        self.state = tmp_path / "results"
        self.tokenizer = tmp_path / "model"
        self._monkeypatch, self._capsys = monkeypatch, capsys
        for directory in (self.plan, self.tokenizer, tmp_path / "bin"):
            directory.mkdir()
        for name in ("systemd-run", "systemctl", "journalctl"):
            shutil.copy(FAKE, tmp_path / "bin" / name)
        for slot in ("probe", "bench-client"):
            (self.root / slot / "env" / "bin").mkdir(parents=True)
            shutil.copy(FAKE, self.root / slot / "env" / "bin" / "python")
        (self.root / "bench-client/env/lib/python3.11/site-packages/sglang-0.5.9.dist-info").mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("FAKE_BENCH", str(self.plan))
        (self.root / "probe/env/lib/python3.11/site-packages/rackwell/probe").mkdir(parents=True)
        (self.root / "probe/env/lib/python3.11/site-packages/rackwell/probe/loadgen.py").touch()
        self.server: Engine | None = Engine()
        self.port = self.server.port
        self.ends("success 0", "measured-c4.jsonl")
        (self.plan / "state").write_text("aaaa 0\n")
        (self.plan / "active").write_text("inactive\n")
        telemetry = record(lambda _t, _g: 250.0, seconds=8, start=1)
        (self.plan / "telemetry.json").write_text(json.dumps(telemetry))

    def ends(self, outcome: str, output: str | None, stdout: str = "", stderr: str = "") -> None:
        """How the next measurement ends."""
        (self.plan / "outcome").write_text(outcome)
        (self.plan / "out.jsonl").unlink(missing_ok=True)
        if output:
            shutil.copy(DATA / output, self.plan / "out.jsonl")
        (self.plan / "stdout").write_text(stdout)
        (self.plan / "stderr").write_text(stderr)

    def die(self) -> None:
        """The server's port closes."""
        if self.server is not None:
            self.server.close()
            self.server = None

    def started(self) -> list[list[str]]:
        """Calls of systemd-run so far."""
        file = self.plan / "calls"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [call for call in calls if call[0].endswith("systemd-run")]

    def call(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """Run the module; the exit status is in ``failed``."""
        arguments = {
            "run_id": "r1",
            "concurrency": 4,
            "num_prompts": 16,
            "input_tokens": 128,
            "output_tokens": 64,
            "port": self.port,
            "served_name": "glm-5",
            "tokenizer": str(self.tokenizer),
            "user": getpass.getuser(),
            "root": str(self.root),
            "state": str(self.state),
            "_ansible_check_mode": check,
            **options,
        }
        self._monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        self._monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy")
        with pytest.raises(SystemExit):
            bench_point.main()
        return dict(json.loads(self._capsys.readouterr().out))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Host]:
    found = Host(tmp_path, monkeypatch, capsys)
    yield found
    found.die()


def test_a_point_is_measured_and_changes_nothing(host: Host) -> None:
    answer = host.call()
    assert not answer.get("failed"), answer.get("msg")
    assert answer["changed"] is False
    result = answer["rackwell_result"]
    assert (result["schema"], result["status"], result["valid"]) == ("rackwell.bench_point/1", "measured", True)
    assert result["throughput"]["output_tok_per_s"] > 0
    assert result["client"] == {"name": "sglang.bench_serving", "version": "0.5.9"}
    assert result["server"]["tp_size"] == 8
    assert result["telemetry"]["gpus"][7]["power_w"]["mean"] == pytest.approx(250.0)
    assert "sk-secret" not in json.dumps(answer)


def test_the_unit_is_bounded_runs_as_the_service_user_and_has_the_recorder_around_the_client(host: Host) -> None:
    host.call(point_timeout=321)
    (call,) = host.started()
    assert "rackwell-bench-r1-i128-o64-c4-r1.service" in call
    assert {"RuntimeMaxSec=321", f"User={getpass.getuser()}", "LimitNOFILE=65536"} <= set(call)
    assert "--setenv=HF_HUB_OFFLINE=1" in call
    argv = call[call.index("--") + 1 :]
    assert argv[1:4] == ["-m", "rackwell.probe", "record"]
    assert argv[argv.index("--server") + 1] == f"127.0.0.1:{host.port}"
    watched = argv[argv.index("--") + 1 :]
    assert watched[1].endswith("rackwell/probe/loadgen.py")
    assert watched[watched.index("--requests") + 2] == "sglang.bench_serving"


def test_secrets_do_not_stay_on_the_host(host: Host) -> None:
    host.call()
    directory = host.state / "r1" / "i128-o64-c4-r1"
    assert not (directory / "client" / "out.jsonl").exists()
    kept = gzip.decompress((directory / "out.jsonl.gz").read_bytes()).decode()
    assert "sk-secret" not in kept
    assert "itls" in kept
    assert stat.S_IMODE(directory.stat().st_mode) == 0o750


def test_the_service_user_can_write_in_one_directory_only(host: Host) -> None:
    host.call()
    (call,) = host.started()
    properties = dict(call[i + 1].split("=", 1) for i in range(call.index("--")) if call[i] == "-p")
    directory = host.state / "r1" / "i128-o64-c4-r1"
    assert properties["WorkingDirectory"] == str(directory / "client")
    assert properties["StandardOutput"] == f"append:{directory / 'stdout'}"
    argv = call[call.index("--") + 1 :]
    for option in ("--out", "--output-file"):
        assert Path(argv[argv.index(option) + 1]).parent == directory / "client"
    assert {path.name for path in directory.iterdir()} == {
        "after.json", "client", "context.json", "out.jsonl.gz", "request.json", "stderr", "stdout", "telemetry.json.gz"
    }  # fmt: skip
    assert stat.S_IMODE((host.state / "r1").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_the_users_directory_is_the_users_and_the_rest_is_roots(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = bench_unit.make_directory(str(tmp_path / "s"), "r", "c4", 12345, 12345)
    finally:
        os.umask(before)
    directory = Path(made)
    found = [path.stat() for path in (tmp_path / "s", directory.parent, directory, directory / "client")]
    assert [entry.st_uid for entry in found] == [0, 0, 0, 12345]
    assert [stat.S_IMODE(entry.st_mode) for entry in found] == [0o755, 0o755, 0o750, 0o750]


def test_planted_links_are_not_followed(host: Host, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    directory = host.state / "r1" / "i128-o64-c4-r1"
    (directory / "client").mkdir(parents=True)
    for name in ("context.json", "context.json.partial", "request.json", "stdout", "stderr", "client/outcome"):
        (directory / name).symlink_to(victim)
    answer = host.call()
    assert not answer.get("failed"), answer.get("msg")
    assert victim.read_text() == "whole"
    assert not [path for path in directory.rglob("*") if path.is_symlink()]


def test_a_directory_that_is_a_link_is_replaced(host: Host, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (host.state / "r1").mkdir(parents=True)
    (host.state / "r1" / "i128-o64-c4-r1").symlink_to(tmp_path / "elsewhere")
    assert not host.call().get("failed")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", "r1"])
def test_where_others_could_plant_links_nothing_is_written(host: Host, name: str) -> None:
    (host.state / "r1").mkdir(parents=True)
    (host.state / name).chmod(0o777)
    assert host.call()["rackwell_error"]["code"] == "bench-directory"
    assert host.started() == []


def test_only_a_regular_file_of_the_user_is_believed(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("secret")
    link.symlink_to(real)
    os.mkfifo(pipe)
    me = os.geteuid()
    assert [bench_unit.read_text(str(path), me) for path in (real, link, pipe)] == ["secret", "", ""]
    assert bench_unit.read_text(str(real), me + 1) == ""


def test_the_same_point_of_the_same_run_is_measured_once(host: Host) -> None:
    first = host.call()["rackwell_result"]
    again = host.call()["rackwell_result"]
    assert len(host.started()) == 1
    assert again == first


@pytest.mark.parametrize("change", [{"resume": False}, {"seed": 2}, {"run_id": "r2"}, {"num_prompts": 32}])
def test_what_was_asked_otherwise_is_measured_anew(host: Host, change: dict[str, Any]) -> None:
    host.call()
    host.call(**change)
    assert len(host.started()) == 2


def test_a_measurement_in_progress_is_attached_to(host: Host) -> None:
    host.call()
    (host.plan / "active").write_text("active\ninactive\n")
    result = host.call(resume=False)["rackwell_result"]
    assert result["attached"] is True
    assert result["valid"] is True
    assert len(host.started()) == 1


def test_what_an_interrupted_run_left_is_waited_for(host: Host) -> None:
    (host.plan / "units").write_text("rackwell-bench-r0-16.service loaded active running sglang\n")
    # this point's own unit, then twice the other one
    (host.plan / "active").write_text("inactive\nactive\ninactive\n")
    assert host.call()["rackwell_result"]["valid"] is True
    calls = [json.loads(line)[1:] for line in (host.plan / "calls").read_text().splitlines()]
    asked = [call for call in calls if "rackwell-bench-r0-16.service" in call]
    assert len(asked) == 2
    started = next(i for i, call in enumerate(calls) if "--wait" in call)
    assert all(calls.index(call) < started for call in asked)


def test_one_that_does_not_end_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.plan / "units").write_text("rackwell-bench-r0-16.service loaded active running sglang\n")
    (host.plan / "active").write_text("inactive\nactive\n")
    monkeypatch.setattr(bench_unit, "wait", lambda *_: False)
    error = host.call()["rackwell_error"]
    assert (error["code"], error["where"]) == ("bench-running", "rackwell-bench-r0-16.service")
    assert host.started() == []


def test_check_mode_says_what_would_run_and_runs_nothing(host: Host) -> None:
    answer = host.call(check=True)
    assert (answer["changed"], answer["rackwell_result"]["status"]) == (False, "planned")
    assert "sglang.bench_serving" in answer["command"]
    assert host.started() == []
    assert not host.state.exists()


def test_failed_requests_fail_the_task_and_the_numbers_are_returned(host: Host) -> None:
    host.ends("success 0", "requests-failed.jsonl")
    answer = host.call()
    assert answer["failed"] is True
    assert answer["rackwell_error"]["code"] == "bench-requests-failed"
    result = answer["rackwell_result"]
    assert (result["status"], result["valid"], result["requests"]["failed"]) == ("measured", False, 5)


def test_an_api_key_reaches_the_client_and_nobody_else(host: Host) -> None:
    answer = host.call(api_key='sk-"quoted"$1')
    assert not answer.get("failed"), answer.get("msg")
    given = host.plan / "secret"
    assert given.read_text() == 'OPENAI_API_KEY="sk-\\"quoted\\"\\$1"\n'
    assert given.stat().st_mode & 0o077 == 0
    assert "quoted" not in json.dumps([host.started(), answer])
    assert not [path for path in host.state.rglob("*") if path.is_file() and b"quoted" in path.read_bytes()]


def test_a_server_that_was_started_anew_has_crashed(host: Host) -> None:
    host.ends("exit-code 1", None, (DATA / "server-died.stdout").read_text(), (DATA / "server-died.stderr").read_text())
    (host.plan / "state").write_text("aaaa 0\nbbbb 1\n")
    answer = host.call()
    assert answer["rackwell_error"]["code"] == "server-crashed"
    assert answer["rackwell_result"]["status"] == "crashed"
    assert "hunter2" not in json.dumps(answer)
    lines = answer["rackwell_result"]["lines"]
    assert "AttributeError: page_table_1_flattened" in lines
    assert not any("POST /v1/completions" in line for line in lines)


def test_a_restart_in_the_middle_spoils_numbers_that_look_good(host: Host) -> None:
    (host.plan / "state").write_text("aaaa 0\nbbbb 1\n")
    answer = host.call()
    assert (answer["rackwell_result"]["status"], answer["rackwell_result"]["valid"]) == ("crashed", False)


def test_a_client_that_gives_up_is_told_by_its_own_words(host: Host) -> None:
    host.ends("exit-code 1", None, stderr="Traceback (most recent call last):\nValueError: Warmup failed - no\n")
    answer = host.call()
    assert answer["rackwell_error"]["code"] == "bench-client-failed"
    assert answer["rackwell_error"]["why"] == "ValueError: Warmup failed - no"
    assert answer["rackwell_result"]["status"] == "failed"


def test_a_deadline_is_told_as_one(host: Host) -> None:
    host.ends("timeout 15", None)
    answer = host.call(point_timeout=5)
    assert answer["rackwell_error"]["code"] == "bench-timeout"
    assert "5 s" in answer["msg"]


def test_a_line_written_before_the_deadline_hit_is_not_believed(host: Host) -> None:
    host.ends("timeout 15", "measured-c4.jsonl")
    assert host.call()["rackwell_result"]["valid"] is False


def test_without_a_server_nothing_is_started(host: Host) -> None:
    host.die()
    answer = host.call()
    assert answer["rackwell_error"]["code"] == "server-not-reachable"
    assert host.started() == []


def test_without_telemetry_the_numbers_count_and_it_is_remarked(host: Host) -> None:
    (host.plan / "telemetry.json").unlink()
    result = host.call()["rackwell_result"]
    assert result["valid"] is True
    assert result["telemetry"] is None
    assert any("No GPU telemetry" in remark for remark in result["remarks"])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"run_id": "../x"}, "bench-run-id"),
        ({"concurrency": 0}, "bench-option"),
        ({"tokenizer": "/nonexistent"}, "bench-tokenizer"),
        ({"user": "nobody-of-that-name"}, "bench-user"),
        ({"root": "/nonexistent"}, "bench-not-staged"),
    ],
)
def test_what_cannot_begin_is_said_before_anything_is_started(host: Host, change: dict[str, Any], code: str) -> None:
    answer = host.call(**change)
    assert answer["rackwell_error"]["code"] == code
    assert host.started() == []


def test_the_server_is_warmed_up_greedily_and_sampled_then_flushed(host: Host) -> None:
    result = host.call()["rackwell_result"]
    assert host.server is not None
    asked = [(path, (body or {}).get("temperature")) for path, body in host.server.asked]
    assert asked == [("/v1/completions", 0.0), ("/v1/completions", 0.8), ("/flush_cache", None)]
    assert result["flush"]["proved"] is True


def test_seconds_of_warm_up_keep_the_points_streams_busy(host: Host) -> None:
    assert not host.call(warmup={"seconds": 0.3}).get("failed")
    assert host.server is not None
    load = [body for path, body in host.server.asked if path == "/v1/completions"][2:]
    assert len(load) >= 4
    assert {body["max_tokens"] for body in load} == {64}
    assert len({body["prompt"] for body in load}) == len(load)


def test_warm_up_requests_are_the_clients_and_win_over_the_older_option(host: Host) -> None:
    result = host.call(warmup={"requests": 7}, warmup_requests=3)["rackwell_result"]
    command = result["command"]
    assert command[command.index("--warmup-requests") + 1] == "7"
    assert result["warmup_requests"] == 7


def test_a_server_that_refuses_the_warm_up_is_not_measured(host: Host) -> None:
    assert host.server is not None
    host.server.answer = 500
    answer = host.call()
    assert answer["rackwell_error"]["code"] == "bench-warmup"
    assert "HTTP 500" in answer["msg"]
    assert host.started() == []


def test_a_cache_that_was_not_flushed_is_told(host: Host) -> None:
    assert host.server is not None
    host.server.flush_status = 400
    result = host.call()["rackwell_result"]
    assert result["flush"]["proved"] is False
    assert any("not proved" in remark for remark in result["remarks"])


SANE = {"prompt": "The capital of France is", "expect": "Paris"}


def test_the_known_answer_is_asked_before_and_after_and_once_only(host: Host) -> None:
    assert not host.call(sane=SANE).get("failed")
    host.call(sane=SANE)
    assert host.server is not None
    assert [body["prompt"] for _path, body in host.server.asked if body and body.get("logprobs")] == [
        SANE["prompt"]
    ] * 2


def test_a_server_that_answers_wrongly_has_no_speed(host: Host) -> None:
    assert host.server is not None
    host.server.answer = " Lyon."
    answer = host.call(sane=SANE)
    assert answer["rackwell_error"]["code"] == "bench-garbage"
    assert answer["rackwell_result"]["status"] == "measured"
    assert "before the measurement" in answer["rackwell_error"]["why"]


def test_a_server_that_comes_again_is_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.server is not None
    host.server.health_status = 503
    (host.plan / "active").write_text("inactive\nactivating\nactive\n")
    server = host.server

    def later(_seconds: float) -> None:
        server.health_status = 200

    monkeypatch.setattr(bench_server.time, "sleep", later)
    assert not host.call(server_wait=60).get("failed")
    assert [path for path, _body in host.server.asked][:2] == ["/health", "/health"]


@pytest.mark.parametrize(
    ("state", "why"), [("failed", "is failed"), ("inactive", "is inactive"), ("active", "not ready after 0.001 s")]
)
def test_a_server_that_does_not_come_is_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch, state: str, why: str
) -> None:
    assert host.server is not None
    host.server.health_status = 503
    (host.plan / "active").write_text(f"inactive\n{state}\n")
    monkeypatch.setattr(bench_server, "_POLL_S", 0.01)
    wait = bench_server.Server.wait
    monkeypatch.setattr(bench_server.Server, "wait", lambda self, _seconds: wait(self, 0.001))
    answer = host.call(server_wait=1)
    assert answer["rackwell_error"]["code"] == "server-not-reachable"
    assert why in answer["rackwell_error"]["why"]
    assert host.started() == []


def test_a_probe_without_the_watch_is_too_old(host: Host) -> None:
    next((host.root / "probe").rglob("loadgen.py")).unlink()
    error = host.call()["rackwell_error"]
    assert (error["code"], error["fix"]) == ("bench-not-staged", "rackwell provision, which stages this one's")


def test_the_servers_own_client_runs_where_its_release_can_run_it(host: Host) -> None:
    packages = host.root / "current/env/lib/python3.12/site-packages"
    for name in ("sglang/benchmark", "aiohttp", "numpy", "requests", "tqdm", "transformers", "sglang-0.5.16.dist-info"):
        (packages / name).mkdir(parents=True)
    (packages / "sglang/benchmark/serving.py").touch()
    (host.root / "current/env/bin").mkdir()
    shutil.copy(FAKE, host.root / "current/env/bin/python")
    result = host.call(client="server")["rackwell_result"]
    assert result["client"] == {"name": "sglang.benchmark.serving", "version": "0.5.16"}
    assert result["command"][:3] == [str(host.root / "current/env/bin/python"), "-m", "sglang.benchmark.serving"]


def test_where_it_cannot_the_staged_client_runs_and_that_is_remarked(host: Host) -> None:
    (host.root / "current/env/lib/python3.11/site-packages/sglang").mkdir(parents=True)
    result = host.call(client="server")["rackwell_result"]
    assert result["client"] == {"name": "sglang.bench_serving", "version": "0.5.9"}
    assert any("bench-client measured" in remark for remark in result["remarks"])


def test_a_key_is_not_given_to_a_client_that_would_show_it(host: Host) -> None:
    answer = host.call(client="aiperf", api_key="hunter2")
    assert answer["rackwell_error"]["code"] == "bench-client"
    assert "hunter2" not in json.dumps(answer)


def test_another_repeat_is_another_measurement_of_its_own(host: Host) -> None:
    first = host.call()["rackwell_result"]
    second = host.call(repeat=2)["rackwell_result"]
    assert (second["repeat"], len(host.started())) == (2, 2)
    assert first["directory"] != second["directory"]


def test_recorder_and_watch_are_packed_for_root(host: Host) -> None:
    result = host.call()["rackwell_result"]
    record = json.loads(gzip.decompress((Path(result["directory"]) / "telemetry.json.gz").read_bytes()))
    assert record["schema"] == "rackwell.telemetry/1"
    assert not (Path(result["directory"]) / "client" / "telemetry.json").exists()


def test_a_server_that_dies_in_the_warm_up_has_crashed(host: Host) -> None:
    assert host.server is not None
    host.server.answer = 500
    host.server.health_status = 503
    (host.plan / "state").write_text("aaaa 0\nbbbb 1\n")
    answer = host.call()
    assert answer["rackwell_error"]["code"] == "server-crashed"
    result = answer["rackwell_result"]
    assert [reason["code"] for reason in result["reasons"]] == ["server-crashed", "bench-warmup"]
    assert (result["status"], "AttributeError: page_table_1_flattened" in result["lines"]) == ("crashed", True)
    assert host.started() == []
