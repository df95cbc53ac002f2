# SPDX-License-Identifier: Apache-2.0
"""The stand-in engine as a process: how it starts, answers, refuses and ends."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@dataclasses.dataclass
class Running:
    """An engine that says that it is ready."""

    process: subprocess.Popen[str]
    port: int
    log: list[str]

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        connection.close()
        return status, text

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        status, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200
        pieces = [piece.removeprefix("data: ") for piece in text.split("\n\n") if piece]
        assert pieces.pop() == "[DONE]"
        return [json.loads(piece) for piece in pieces]

    def end(self) -> int:
        return self.process.wait(timeout=30)


Start = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture
def start(model: Path, environment: Callable[..., dict[str, str]]) -> Start:
    """Starts an engine and waits for a line of its log."""

    @contextlib.contextmanager
    def make(*flags: str, until: str = "fired up", **faults: object) -> Iterator[Running]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "rackwell_lab_engine", "--model-path", str(model), "--port", str(port), *flags]
        process = subprocess.Popen(
            command, env=environment(**faults), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        running = Running(process, port, [])
        seen = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                running.log.append(line.rstrip("\n"))
                if until in line:
                    seen.set()
            seen.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert seen.wait(30)
            yield running
        finally:
            process.kill()
            process.wait()
            reader.join()
            assert process.stderr is not None
            process.stderr.close()

    return make


def complete(running: Running, **body: Any) -> dict[str, Any]:
    status, text = running.ask("POST", "/v1/completions", {"model": "any", "prompt": "hello", **body})
    assert status == 200, text
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_it_serves_both_protocols(start: Start) -> None:
    with start("--served-model-name", "glm-5", "--enable-metrics") as engine:
        assert engine.ask("GET", "/health") == (200, "")
        assert json.loads(engine.ask("GET", "/v1/models")[1])["data"][0]["id"] == "glm-5"
        answer = complete(engine, prompt="The capital of France is", max_tokens=16, logprobs=1)
        assert answer["choices"][0]["text"] == " Paris."
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["logprobs"]["tokens"] == [" Paris", "."]
        assert answer["model"] == "any", "an unknown model name is echoed, not refused"

        answer = complete(engine, max_tokens=7)
        assert answer["usage"]["completion_tokens"] == 7
        assert answer["choices"][0]["finish_reason"] == "length"
        chunks = engine.events("/v1/completions", {"prompt": "hello", "max_tokens": 7})
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer["choices"][0]["text"]
        assert len(chunks) == 7, "no chunk without choices unless asked for"
        counted = engine.events(
            "/v1/completions", {"prompt": "hello", "max_tokens": 3, "stream_options": {"continuous_usage_stats": True}}
        )
        assert [chunk["usage"]["completion_tokens"] for chunk in counted] == [1, 2, 3]

        messages = [{"role": "user", "content": "What is the capital of France?"}]
        chunks = engine.events(
            "/v1/chat/completions", {"messages": messages, "stream_options": {"include_usage": True}}
        )
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 2
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == " Paris."

        native = engine.events("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}})
        assert [event["meta_info"]["completion_tokens"] for event in native if event["index"] == 1] == [1, 2]
        assert engine.ask("POST", "/flush_cache")[0] == 200
        info = json.loads(engine.ask("GET", "/get_server_info")[1])
        assert info["served_model_name"] == "glm-5"
        assert info["internal_states"][0]["avg_spec_accept_length"] is None
        metrics = engine.ask("GET", "/metrics")[1]
        assert re.search(r"^sglang:num_requests_total\{[^}]*\} 7\.0$", metrics, re.MULTILINE)
        assert engine.ask("GET", "/nowhere")[0] == 404


def test_too_long_a_prompt_is_refused_and_hidden_in_the_native_stream(start: Start) -> None:
    with start() as engine:
        long = {"prompt": list(range(300)), "max_tokens": 4}
        status, text = engine.ask("POST", "/v1/completions", long)
        assert status == 400
        assert json.loads(text)["message"].startswith(
            "The input (300 tokens) is longer than the model's context length (256"
        )
        events = engine.events("/generate", {"input_ids": list(range(300))})
        assert "longer than the model's context" in events[0]["error"]["message"]
        assert engine.ask("POST", "/v1/completions", "text")[0] == 400
        assert engine.ask("GET", "/metrics")[0] == 404, "only with --enable-metrics"


def test_the_api_key_guards_all_but_health(start: Start) -> None:
    with start("--api-key", "k", "--enable-metrics") as engine:
        assert engine.ask("GET", "/v1/models") == (401, '{"error":"Unauthorized"}')
        assert engine.ask("GET", "/v1/models", key="k")[0] == 200
        assert engine.ask("GET", "/v1/models", key="x")[0] == 401
        assert engine.ask("GET", "/health_generate")[0] == 200
        assert engine.ask("GET", "/metrics")[0] == 200
        assert any("api_key='k'" in line for line in engine.log), "the original logs it in clear"


def test_sigterm_drains_and_ends_by_sigkill(start: Start) -> None:
    with start() as engine:
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
        body = {"prompt": "hello", "max_tokens": 100, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        first = answer.readline()
        engine.process.send_signal(signal.SIGTERM)
        rest = answer.read()
        connection.close()
        assert engine.end() == -signal.SIGKILL
        assert (first + rest).count(b"data: ") == 101, "the running request was answered whole"
        assert rest.endswith(b"data: [DONE]\n\n")
    assert any("SIGTERM received" in line for line in engine.log)


def test_sigint_ends_well(start: Start) -> None:
    with start() as engine:
        engine.process.send_signal(signal.SIGINT)
        assert engine.end() == 0


def test_a_taken_port_ends_with_3_after_the_whole_start(start: Start) -> None:
    with start() as first, start("--port", str(first.port), until="shutdown complete") as second:
        assert second.end() == 3
        text = "\n".join(second.log)
        assert "address already in use" in text
        assert text.index("address already in use") < text.index("The server is fired up and ready to roll!")


def test_an_engine_that_dies_while_loading(start: Start) -> None:
    with start("--tp-size", "2", until="kill_process_tree", die_while_loading="ValueError: made to die") as engine:
        assert engine.end() == -signal.SIGKILL
    text = "\n".join(engine.log)
    assert "TP1] Scheduler hit an exception: Traceback (most recent call last):" in text
    assert text.count("ValueError: made to die") == 2
    assert "Received sigquit from a child process. It usually means the child failed." in text


def test_the_nth_request_kills_the_engine(start: Start) -> None:
    with start(crash_after_requests=2) as engine:
        complete(engine, max_tokens=1)
        with pytest.raises((OSError, http.client.HTTPException)):
            complete(engine, max_tokens=1)
        assert engine.end() == -signal.SIGKILL


def test_an_unhealthy_engine_opens_its_port_and_answers_503(start: Start) -> None:
    with start(until="Uvicorn running", never_ready="unhealthy") as engine:
        assert engine.ask("GET", "/health") == (503, "")
        assert engine.ask("GET", "/v1/models")[0] == 200


def test_failing_requests(start: Start) -> None:
    with start(fail_requests=2) as engine:
        statuses = [engine.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] for _ in range(4)]
    assert statuses == [200, 500, 200, 500]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model-path", "/nonexistent"], 1, "OSError: Repo id must be in the form"),
        (["--context-length", "100000"], 1, "ValueError: Warning: User-specified context_length (100000) is greater"),
        (["--config", "x.yml"], 1, "--config"),
        (["--no-such-flag"], 2, "unrecognized arguments: --no-such-flag"),
    ],
)
def test_refusals(
    model: Path, environment: Callable[..., dict[str, str]], arguments: list[str], code: int, said: str
) -> None:
    command = [sys.executable, "-m", "rackwell_lab_engine", "--model-path", str(model), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stderr
