# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: the OpenAI and the native endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from collections.abc import Sequence as Series
from pathlib import Path
from typing import Any

from rackwell_lab_engine import __version__, log, text
from rackwell_lab_engine.scheduler import Scheduler, Sequence
from rackwell_lab_engine.web import Request, Response, event, json_response

Prompt = str | list[int]
_EOS = 151643  # the id that a finish by the model's own end reports


class RefusedError(Exception):
    """The request is wrong; answered with 400."""


def error(message: str, kind: str = "BadRequestError", status: int = 400) -> Response:
    """An error in the form of the OpenAI endpoints."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return json_response(body, status)


def _prompts(value: Any) -> list[Prompt]:
    """One prompt or several, as text or as token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, int) for item in value):
            return [value]
        if all(isinstance(item, str) or (isinstance(item, list) and item) for item in value):
            return value
    raise RefusedError("prompt must be a string, a list of token ids, or a list of either")


def _chat_prompt(messages: Any) -> str:
    """The text of a conversation, ending with what was asked last."""
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list that is not empty")
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(piece.get("text", "")) for piece in content)
        parts.append(str(content))
    return "\n".join(parts)


def _logprobs(tokens: Series[str], *, finite: bool) -> dict[str, Any]:
    values = [-0.5 if finite else None for _ in tokens]
    tops = [{token: value} for token, value in zip(tokens, values, strict=True)]
    return {"text_offset": [-1] * len(tokens), "token_logprobs": values, "tokens": list(tokens), "top_logprobs": tops}


class Api:
    """Answers requests.

    Args:
        flags: parsed server arguments by field name. model: config.json of the model. context: tokens.
    """

    def __init__(self, scheduler: Scheduler, flags: Mapping[str, Any], model: Mapping[str, Any], context: int) -> None:
        self.scheduler = scheduler
        self.flags = flags
        self.model = model
        self.context = context
        self.ready = False
        self.draining = False
        self.name = str(flags["served_model_name"] or flags["model_path"])
        self.model_path = Path(flags["model_path"])
        self.started = int(time.time())
        self._answered = 0
        self._routes: dict[str, tuple[tuple[str, ...], Callable[[Request], Awaitable[Response]]]] = {
            "/health": (("GET",), self.health),
            "/health_generate": (("GET",), self.health),
            "/ping": (("GET",), self.health),
            "/v1/models": (("GET",), self.models),
            "/v1/completions": (("POST",), self.completions),
            "/v1/chat/completions": (("POST",), self.chat),
            "/generate": (("POST", "PUT"), self.generate),
            "/flush_cache": (("GET", "POST"), self.flush_cache),
            "/server_info": (("GET",), self.server_info),
            "/get_server_info": (("GET",), self.server_info),
            "/model_info": (("GET",), self.model_info),
            "/get_model_info": (("GET",), self.model_info),
        }
        if flags["enable_metrics"]:
            self._routes["/metrics"] = (("GET",), self.metrics)

    async def __call__(self, request: Request) -> Response:
        """Authorise and dispatch."""
        if not self._authorised(request):
            return json_response({"error": "Unauthorized"}, 401)
        methods, handler = self._routes.get(request.path, ((), None))
        if handler is None:
            return json_response({"detail": "Not Found"}, 404)
        if request.method not in methods:
            return json_response({"detail": "Method Not Allowed"}, 405)
        try:
            return await handler(request)
        except RefusedError as refusal:
            return error(str(refusal))
        except (ValueError, TypeError, AttributeError) as wrong:
            return error(f"Invalid request body, error: {wrong}")

    def _authorised(self, request: Request) -> bool:
        if request.path.startswith(("/health", "/metrics")):
            return True
        key = self.flags["api_key"]
        if request.path == "/flush_cache" and self.flags["admin_api_key"]:
            key = self.flags["admin_api_key"]
        if not key:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(token.encode(), str(key).encode())

    # -- state ---------------------------------------------------------------------------------------------------

    async def health(self, _request: Request) -> Response:
        """200 when a token can be had, 503 while loading, draining or hung."""
        if self.draining:
            log.line("Health check request received during shutdown. Returning 503.")
        if self.draining or not self.ready:
            return Response(503)
        behaviour = self.scheduler.behaviour
        if self.scheduler.hung:
            await asyncio.sleep(behaviour.health_timeout)
            log.line(
                "Health check failed. Server couldn't get a response from detokenizer for last "
                f"{behaviour.health_timeout:g} seconds."
            )
            return Response(503)
        await asyncio.sleep(behaviour.health_seconds)
        return Response(200)

    async def models(self, _request: Request) -> Response:
        """The served model."""
        card = {
            "id": self.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.name,
            "parent": None,
            "max_model_len": self.context,
        }
        return json_response({"object": "list", "data": [card]})

    async def model_info(self, _request: Request) -> Response:
        """What the model is."""
        return json_response(
            {
                "model_path": self.flags["model_path"],
                "tokenizer_path": self.flags["tokenizer_path"] or self.flags["model_path"],
                "is_generation": True,
                "preferred_sampling_params": self.flags["preferred_sampling_params"],
                "weight_version": self.flags["weight_version"],
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": self.model.get("model_type"),
                "architectures": self.model.get("architectures"),
            }
        )

    async def server_info(self, _request: Request) -> Response:
        """All server arguments, the API key in clear among them, as the original's."""
        state = {
            "last_gen_throughput": self.scheduler.throughput,
            "memory_usage": {"weight": 57.2, "kvcache": 18.4, "token_capacity": self.scheduler.capacity, "graph": 0.0},
            "effective_max_running_requests_per_dp": self.scheduler.max_running,
            "avg_spec_accept_length": None,
        }
        return json_response(
            {
                **self.flags,
                "status": "ready",
                "max_total_num_tokens": self.scheduler.capacity,
                "max_req_input_len": self.context - 6,
                "internal_states": [state],
                "version": f"0.5.9+rackwell-lab-engine.{__version__}",
            }
        )

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        scheduler = self.scheduler
        body = scheduler.metrics.render(
            self.name,
            {
                "num_running_reqs": len(scheduler.running),
                "num_queue_reqs": len(scheduler.waiting),
                "gen_throughput": scheduler.throughput,
                "token_usage": scheduler.token_usage,
                "cache_hit_rate": scheduler.metrics.cached_tokens / max(scheduler.metrics.prompt_tokens, 1),
                "max_total_num_tokens": scheduler.capacity,
            },
        )
        return Response(200, body.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def flush_cache(self, _request: Request) -> Response:
        """Refused while requests run."""
        body = (
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        return Response(200 if self.scheduler.flush() else 400, body, "text/plain; charset=utf-8")

    # -- generation ----------------------------------------------------------------------------------------------

    def _sequence(self, prompt: Prompt, length: Any, *, ignore_eos: bool, overhead: int = 0) -> Sequence:
        if not isinstance(length, int) or length < 1:
            raise RefusedError("max_tokens must be positive")
        count = text.count_tokens(prompt) + overhead
        if count >= self.context:
            raise RefusedError(
                f"The input ({count} tokens) is longer than the model's context length ({self.context} tokens)."
            )
        length = min(length, self.context - count)
        fault = self.scheduler.behaviour.faults.output
        tokens, ended = text.generate(prompt, length, self.model_path, ignore_eos=ignore_eos, fault=fault)
        cached = self.scheduler.cached(prompt, count)
        return Sequence(count, tokens, "stop" if ended else "length", cached)

    def _count(self) -> None:
        """Every n-th request fails when a fault says so."""
        self._answered += 1
        every = self.scheduler.behaviour.faults.fail_requests
        if every and self._answered % every == 0:
            raise InternalError

    async def _all(self, sequence: Sequence) -> str:
        return "".join([token async for token in self.scheduler.stream(sequence)])

    async def _merged(self, sequences: list[Sequence]) -> AsyncGenerator[tuple[int, str], None]:
        """Tokens of several sequences as they come, with the sequence's index."""
        if len(sequences) == 1:
            async for token in self.scheduler.stream(sequences[0]):
                yield 0, token
            return
        queue: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

        async def pump(index: int, sequence: Sequence) -> None:
            async for token in self.scheduler.stream(sequence):
                queue.put_nowait((index, token))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pump(i, s)) for i, s in enumerate(sequences)]
            try:
                for _ in range(sum(len(s.tokens) for s in sequences)):
                    yield await queue.get()
            finally:
                for task in tasks:
                    task.cancel()

    @staticmethod
    def _usage(sequences: list[Sequence], so_far: int | None = None) -> dict[str, Any]:
        prompt = sum(s.prompt_tokens for s in sequences)
        completion = sum(len(s.tokens) for s in sequences) if so_far is None else so_far
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = request.json()
        if body.get("n", 1) != 1 or body.get("echo"):
            raise RefusedError("the stand-in engine takes neither n > 1 nor echo")
        sequences = [
            self._sequence(prompt, body.get("max_tokens", 16), ignore_eos=bool(body.get("ignore_eos")))
            for prompt in _prompts(body.get("prompt"))
        ]
        try:
            self._count()
        except InternalError:
            return error("Internal server error: stand-in fault", "InternalServerError", 500)
        rid = uuid.uuid4().hex
        head = {
            "id": rid,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.get("model", self.name),
        }
        finite = self.scheduler.behaviour.faults.output != "garbage"

        def choice(index: int, piece: str, tokens: Series[str], finish: str | None) -> dict[str, Any]:
            wanted = body.get("logprobs") is not None and tokens
            return {
                "index": index,
                "text": piece,
                "logprobs": _logprobs(tokens, finite=finite) if wanted else None,
                "finish_reason": finish,
                "matched_stop": _EOS if finish == "stop" else None,
            }

        if not body.get("stream"):
            texts = await asyncio.gather(*(self._all(s) for s in sequences))
            choices = [choice(i, t, s.tokens, s.finish) for i, (t, s) in enumerate(zip(texts, sequences, strict=True))]
            answer = {
                **head,
                "choices": choices,
                "usage": self._usage(sequences),
                "metadata": {"weight_version": "default"},
            }
            return json_response(answer)

        async def stream() -> AsyncGenerator[bytes, None]:
            left = [len(s.tokens) for s in sequences]
            async with contextlib.aclosing(self._merged(sequences)) as tokens:
                async for index, token in tokens:
                    left[index] -= 1
                    # the last token and the reason come together, as from the original
                    finish = None if left[index] else sequences[index].finish
                    usage = None
                    if (body.get("stream_options") or {}).get("continuous_usage_stats"):
                        usage = self._usage([sequences[index]], len(sequences[index].tokens) - left[index])
                    yield event({**head, "choices": [choice(index, token, [token], finish)], "usage": usage})
            if (body.get("stream_options") or {}).get("include_usage"):
                yield event({**head, "choices": [], "usage": self._usage(sequences)})
            yield event("[DONE]")

        return Response(200, content_type="text/event-stream; charset=utf-8", stream=stream())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = request.json()
        length = body.get("max_completion_tokens") or body.get("max_tokens") or 128
        sequence = self._sequence(
            _chat_prompt(body.get("messages")), length, ignore_eos=bool(body.get("ignore_eos")), overhead=3
        )
        try:
            self._count()
        except InternalError:
            return error("Internal server error: stand-in fault", "InternalServerError", 500)
        created = int(time.time())
        rid, model = sequence.rid, body.get("model", self.name)
        stop = _EOS if sequence.finish == "stop" else None
        if not body.get("stream"):
            content = await self._all(sequence)
            message = {"role": "assistant", "content": content, "reasoning_content": None, "tool_calls": None}
            choice = {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": sequence.finish,
                "matched_stop": stop,
            }
            return json_response(
                {
                    "id": rid,
                    "object": "chat.completion",
                    "created": created,
                    "model": model,
                    "choices": [choice],
                    "usage": self._usage([sequence]),
                    "metadata": {"weight_version": "default"},
                }
            )

        def chunk(
            delta: dict[str, Any] | None, finish: str | None = None, usage: dict[str, Any] | None = None
        ) -> bytes:
            choices = []
            if delta is not None:
                matched = stop if finish else None
                choices = [
                    {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": matched}
                ]
            head = {"id": rid, "object": "chat.completion.chunk", "created": created, "model": model}
            return event({**head, "choices": choices, "usage": usage})

        async def stream() -> AsyncGenerator[bytes, None]:
            first = True
            async with contextlib.aclosing(self.scheduler.stream(sequence)) as tokens:
                async for token in tokens:
                    if first:
                        yield chunk({"reasoning_content": None, "role": "assistant", "content": ""})
                        first = False
                    yield chunk({"reasoning_content": None, "content": token})
            yield chunk({"reasoning_content": None}, sequence.finish)
            if (body.get("stream_options") or {}).get("include_usage"):
                yield chunk(None, usage=self._usage([sequence]))
            yield event("[DONE]")

        return Response(200, content_type="text/event-stream; charset=utf-8", stream=stream())

    async def generate(self, request: Request) -> Response:
        """POST /generate, the native endpoint. With ``stream`` a refusal is a 200 with the error inside, as there."""
        body = request.json()
        given = body.get("input_ids") if body.get("text") is None else body["text"]
        prompts = _prompts(given)
        batch = isinstance(given, list) and prompts is given
        parameters = body.get("sampling_params") or {}
        length, ignore = parameters.get("max_new_tokens", 128), bool(parameters.get("ignore_eos"))
        try:
            sequences = [self._sequence(prompt, length, ignore_eos=ignore) for prompt in prompts]
        except RefusedError as refusal:
            message = str(refusal)
            log.line(f"[http_server] Error: {message}")
            if not body.get("stream"):
                return json_response({"error": {"message": message}}, 400)

            async def refused() -> AsyncGenerator[bytes, None]:
                yield event({"error": {"message": message}})
                yield event("[DONE]")

            return Response(200, content_type="text/event-stream; charset=utf-8", stream=refused())

        def result(sequence: Sequence, content: str, count: int) -> dict[str, Any]:
            reason: dict[str, Any] | None = None
            if count == len(sequence.tokens):
                kind = sequence.finish
                reason = {"type": kind, "length": count} if kind == "length" else {"type": kind, "matched": _EOS}
            meta = {
                "id": sequence.rid,
                "finish_reason": reason,
                "prompt_tokens": sequence.prompt_tokens,
                "weight_version": "default",
                "total_retractions": 0,
                "completion_tokens": count,
                "cached_tokens": 0,
                "e2e_latency": time.monotonic() - sequence.arrived,
            }
            return {"text": content, "output_ids": list(range(count)), "meta_info": meta}

        if not body.get("stream"):
            texts = await asyncio.gather(*(self._all(s) for s in sequences))
            results = [result(s, t, len(s.tokens)) for s, t in zip(sequences, texts, strict=True)]
            return json_response(results if batch else results[0])

        async def stream() -> AsyncGenerator[bytes, None]:
            so_far = ["" for _ in sequences]
            counts = [0 for _ in sequences]
            async with contextlib.aclosing(self._merged(sequences)) as tokens:
                async for index, token in tokens:
                    so_far[index] += token
                    counts[index] += 1
                    answer = result(sequences[index], so_far[index], counts[index])
                    yield event({**answer, "index": index} if batch else answer)
            yield event("[DONE]")

        return Response(200, content_type="text/event-stream; charset=utf-8", stream=stream())


class InternalError(Exception):
    """The fault ``fail_requests`` strikes."""
