# SPDX-License-Identifier: Apache-2.0
"""The server under test as its own host sees it: waited for, warmed up, asked what it must know, its cache flushed."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ansible_collections.rackwell.gpu.plugins.module_utils import inference_client, inference_log

ACCESS = re.compile(r'"(GET|POST) /\S* HTTP/')
#: a first request with sampling may compile kernels for minutes
WARMUP_TIMEOUT = 600.0
#: a flush waits for what runs
FLUSH_TIMEOUT = 60.0
#: most threads that keep the server under load before the clock starts; more would only wait in its queue
MOST_THREADS = 256
#: the engine's parent notices a dead scheduler after five seconds, and does not answer meanwhile
DYING = 15.0
_POLL_S = 1.0
_WORDS = ("river", "stone", "paper", "green", "seven", "table", "cloud", "motor", "early", "north", "glass", "under")

#: run of a command -> (exit code, stdout, stderr)
Runner = Callable[[List[str]], Tuple[int, str, str]]


class Server:
    """One server.

    Args:
        run: runs a command. options: those of the module.
    """

    def __init__(self, run: Runner, options: Mapping[str, Any]) -> None:
        self.run = run
        self.options = options
        self.unit = str(options["server_unit"])
        self.client = inference_client.Client(str(options["host"]), int(options["port"]), str(options["api_key"] or ""))

    def _show(self, *properties: str) -> List[str]:
        argv = ["systemctl", "show", *("--property=" + name for name in properties), "--value", self.unit]
        return self.run(argv)[1].split()

    def state(self) -> str:
        """Changes when the server's unit was started anew; empty when systemd knows no such unit."""
        return " ".join(self._show("InvocationID", "NRestarts"))

    def answers(self) -> bool:
        """Whether something accepts connections at the server's address."""
        try:
            with socket.create_connection((self.client.host, self.client.port), timeout=5):
                return True
        except OSError:
            return False

    def died(self, before: str, seconds: float = DYING) -> bool:
        """Whether its unit was started anew, or nothing listens any more. A dying server may take its time."""
        deadline = time.monotonic() + seconds
        while True:
            if self.state() != before or not self.answers():
                return True
            if time.monotonic() > deadline or self.client.ask("/health", timeout=5.0).status == 200:
                return False
            time.sleep(_POLL_S)

    def wait(self, seconds: float) -> str:
        """Wait until it is ready, as long as its unit runs or is being started.

        Returns:
            Empty when it is, else why not.
        """
        if seconds <= 0:
            return "" if self.answers() else "the connection is refused or times out"
        deadline = time.monotonic() + seconds
        while True:
            if self.answers() and self.client.ask("/health").status == 200:
                return ""
            active = (self._show("ActiveState") or [""])[0]
            if active in ("failed", "inactive"):
                return "the unit %s is %s" % (self.unit, active)
            if time.monotonic() > deadline:
                return "it is not ready after %g s" % seconds
            time.sleep(_POLL_S)

    def lines(self) -> List[str]:
        """The end of the journal of the server's unit, without the requests that it logged and without its API keys."""
        argv = ["journalctl", "--unit", self.unit, "--lines", "400", "--output", "cat", "--no-pager"]
        kept = [line.strip() for line in self.run(argv)[1].splitlines() if line.strip() and not ACCESS.search(line)]
        lines = [str(inference_log.redact(line))[:400] for line in kept]
        # the traceback of one rank is longer than a screen, and a diagnosis needs its first lines
        return lines[-60:]

    def complete(self, prompt: str, tokens: int, temperature: float, timeout: float) -> inference_client.Reply:
        """A completion that goes on to its full length."""
        body = {
            "model": str(self.options["served_name"]),
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": temperature,
            "ignore_eos": True,
        }
        return self.client.ask("/v1/completions", body, timeout)

    def known_answer(self, sane: Optional[Mapping[str, Any]], when: str) -> List[Dict[str, str]]:
        """Ask the profile's prompt. ``[{"when", "answer", "problem"}]``; empty when the profile has none."""
        if not sane:
            return []
        reply = self.client.complete(str(sane["prompt"]), int(sane["max_tokens"]), WARMUP_TIMEOUT)
        verdict = inference_client.judge(reply, str(sane["expect"]))
        return [{"when": when, "answer": verdict.answer[:200], "problem": verdict.problem}]

    def warm_up(self, seconds: float) -> str:
        """One greedy and one sampled request, and then so many seconds of the point's load.

        Returns:
            Empty when it answered, else why not.
        """
        dice = random.Random(0)  # noqa: S311 - words, no secret
        for kind, temperature in (("greedy", 0.0), ("sampled", 0.8)):
            reply = self.complete(_prompt(dice, 24), 8, temperature, WARMUP_TIMEOUT)
            if reply.status != 200:
                told = "HTTP %d: %s" % (reply.status, reply.text[:200]) if reply.status else reply.text
                return "a %s request: %s" % (kind, told)
        if seconds > 0:
            self._load(seconds)
        return ""

    def _load(self, seconds: float) -> None:
        """Keep it as busy as the point will, with prompts of words that the point's own do not hold."""
        end = time.monotonic() + seconds
        length, answer = int(self.options["input_tokens"]), min(int(self.options["output_tokens"]), 64)
        left = max(60.0, seconds)

        def work(number: int) -> None:
            dice = random.Random(number)  # noqa: S311 - words, no secret
            while time.monotonic() < end:
                # a request that fails must not be sent again at once for the whole time
                if self.complete(_prompt(dice, length), answer, 0.0, left).status != 200:
                    time.sleep(1.0)

        count = min(int(self.options["concurrency"]), MOST_THREADS)
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()) + left)

    def flush(self) -> Dict[str, Any]:
        """Empty the prefix cache: ``{"status", "said"}``, as the server answered."""
        reply = self.client.ask("/flush_cache", {}, FLUSH_TIMEOUT)
        return {"status": reply.status, "said": reply.text[:120]}


def _prompt(dice: random.Random, tokens: int) -> str:
    """Some words, about as many as tokens."""
    return " ".join(dice.choice(_WORDS) for _ in range(max(1, tokens)))
