#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A steady stream of requests, streamed and whole ones in turns, and what became of each.

    tests/roll/steady.py http://ADDRESS:PORT MODEL [--clients 6] [--seconds 60] [--tokens 24] [--key KEY]

Prints what was lost and why, as JSON; exit status 1 when anything was. A request is lost that is not answered with 200,
or not to its end: all its tokens, and of a stream also ``[DONE]``. Nothing is tried again here.
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import sys
import threading
import time
import urllib.parse
from typing import Any


@dataclasses.dataclass
class Tally:
    """What became of the requests. ``longest``: seconds between two answers that ended, of whichever client."""

    streamed: int = 0
    whole: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    longest: float = 0.0

    @property
    def answered(self) -> int:
        """Those that got all of their answer."""
        return self.streamed + self.whole


class Steady:
    """Clients that ask one request after the other until they are told to end; a context manager."""

    def __init__(self, url: str, model: str, clients: int = 6, tokens: int = 24, key: str = "") -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._model, self._tokens = model, tokens
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self.tally = Tally()
        self._threads = [threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(clients)]

    def __enter__(self) -> Steady:
        self._last = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> Tally:
        """Let each client have its present answer to the end."""
        self._over.set()
        for thread in self._threads:
            thread.join(120)
        return self.tally

    def _client(self, number: int) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            stream = (number + count) % 2 == 0
            began = time.monotonic()
            try:
                self._request(f"client {number} asks for the {count}th time", stream)
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                kind = "streamed" if stream else "whole"
                told = (
                    f"{time.time():.3f} {kind} after {time.monotonic() - began:.2f} s: {type(error).__name__}: {error}"
                )
                with self._lock:
                    self.tally.lost.append(told)
                # a router that is gone is not asked ten thousand times a second
                self._over.wait(0.05)
                continue
            with self._lock:
                now = time.monotonic()
                self.tally.longest, self._last = max(self.tally.longest, now - self._last), now
                self.tally.streamed += stream
                self.tally.whole += not stream

    def _request(self, prompt: str, stream: bool) -> None:
        """Ask once. Raises what is wrong with the answer."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), self._headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {text[:200]}")
        if not stream:
            got = json.loads(text)["usage"]["completion_tokens"]
        else:
            events: list[str] = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            if not events or events[-1] != "[DONE]":
                raise ValueError(f"the stream broke off after {len(events)} events")
            got = sum(1 for event in events[:-1] if _has_token(json.loads(event)))
        if got != self._tokens:
            raise ValueError(f"{got} tokens of {self._tokens}")


def _has_token(event: dict[str, Any]) -> bool:
    if "error" in event:
        raise ValueError(str(event["error"])[:200])
    return bool(event.get("choices") and event["choices"][0].get("text"))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--key", default="")
    given = parser.parse_args()
    with Steady(given.url, given.model, given.clients, given.tokens, given.key) as steady:
        time.sleep(given.seconds)
    print(json.dumps(dataclasses.asdict(steady.end()), indent=2))
    return 1 if steady.tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
