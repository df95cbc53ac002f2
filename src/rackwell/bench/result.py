# SPDX-License-Identifier: Apache-2.0
"""What a benchmark run is once it is over: ``rackwell.bench/1``, and the points of ``rackwell.bench_point/1`` in it.

Units are in the names. Unknown fields are ignored, so that a result of a later version can still be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import pydantic


class Part(pydantic.BaseModel):
    """Base of every part of a result."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True)


class Reason(Part):
    """Why a point does not count; the shape of every error of rackwell."""

    code: str
    what: str
    where: str = ""
    why: str = ""
    fix: str = ""


class Distribution(Part):
    """Of one latency over all requests (of ``itl_ms``: over all gaps between chunks), in milliseconds."""

    mean: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float


class Latency(Part):
    """Latencies as the client saw them; None when no request gave one."""

    ttft_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    tpot_ms: Distribution | None = None
    e2e_ms: Distribution | None = None


class Requests(Part):
    """How many requests were asked for, and what became of them."""

    requested: int
    completed: int
    failed: int
    without_tokens: int = 0


class Tokens(Part):
    """Token counts; ``output_received`` is the server's own count where it gives one."""

    input: int
    output_requested: int
    output_received: int
    output_retokenized: int = 0
    output_chunks: int = 0


class Throughput(Part):
    """Rates over the whole measurement, ramp and tail included."""

    duration_s: float
    request_per_s: float
    input_tok_per_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    peak_output_tok_per_s: float = 0.0
    concurrency_achieved: float = 0.0
    accept_length: float | None = None


class Series(Part):
    """One quantity of one GPU: mean (over time) and highest reading in the window, and a thinned series over ``t``."""

    mean: float | None = None
    max: float | None = None
    series: list[float | None] = []


class GpuTelemetry(Part):
    """One GPU in the window. ``energy_source``: counter of the device, or integral of its power."""

    index: int
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None
    memory_total_mib: float | None = None
    power_limit_w: float | None = None
    power_w: Series = Series()
    utilization_pct: Series = Series()
    memory_used_mib: Series = Series()
    temperature_c: Series = Series()
    sm_clock_mhz: Series = Series()
    energy_j: float | None = None
    energy_source: Literal["counter", "power", "none"] = "none"


class Window(Part):
    """The client's measured time on the recorder's clock; true start lies at most ``uncertainty_s`` later."""

    start_utc: str | None = None
    duration_s: float
    uncertainty_s: float | None = None


class Telemetry(Part):
    """GPU telemetry inside the window. ``t``: seconds from its start, the middle of each slice of the series."""

    driver_version: str | None = None
    samples: int = 0
    hz: float = 0.0
    t: list[float] = []
    gpus: list[GpuTelemetry] = []
    energy_j: float | None = None
    window: Window | None = None

    @property
    def mean_power_w(self) -> float | None:
        """Of all GPUs together; None when one of them gave no reading."""
        means = [gpu.power_w.mean for gpu in self.gpus]
        known = [mean for mean in means if mean is not None]
        return sum(known) if known and len(known) == len(means) else None

    @property
    def power_limit_w(self) -> float | None:
        """Of all GPUs together."""
        limits = [gpu.power_limit_w for gpu in self.gpus]
        known = [limit for limit in limits if limit]
        return sum(known) if known and len(known) == len(limits) else None

    @property
    def mean_utilization_pct(self) -> float | None:
        """Average over the GPUs that gave a reading."""
        known = [gpu.utilization_pct.mean for gpu in self.gpus if gpu.utilization_pct.mean is not None]
        return sum(known) / len(known) if known else None


class Software(Part):
    """The load generator."""

    name: str = "sglang.bench_serving"
    version: str | None = None


class ServerInfo(Part):
    """What the server said of itself (secrets are never kept)."""

    version: str | None = None
    model_path: str | None = None
    served_model_name: str | None = None
    tp_size: int | None = None


class RequestError(Part):
    """A distinct error text of requests."""

    text: str
    count: int


class BenchPoint(Part):
    """One concurrency of a sweep, as ``bench_point`` returns it."""

    schema_: Literal["rackwell.bench_point/1"] = pydantic.Field(default="rackwell.bench_point/1", alias="schema")
    concurrency: int
    num_prompts: int
    input_tokens: int
    output_tokens: int
    seed: int = 1
    warmup_requests: int = 0
    status: Literal["measured", "failed", "crashed", "planned"]
    valid: bool
    reasons: list[Reason] = []
    remarks: list[str] = []
    lines: list[str] = []
    errors: list[RequestError] = []
    command: list[str] = []
    started_utc: str | None = None
    client: Software = Software()
    server: ServerInfo = ServerInfo()
    requests: Requests | None = None
    tokens: Tokens | None = None
    throughput: Throughput | None = None
    latency: Latency = Latency()
    telemetry: Telemetry | None = None

    @property
    def joules_per_output_token(self) -> float | None:
        """Energy of all GPUs in the window over the output tokens received; None when either is unknown."""
        if self.telemetry is None or self.telemetry.energy_j is None or self.tokens is None:
            return None
        return self.telemetry.energy_j / self.tokens.output_received if self.tokens.output_received else None


class Release(Part):
    """The release that served."""

    digest: str
    name: str
    sources: dict[str, str] = {}
    patches: list[str] = []


class ProfileRef(Part):
    """The serving profile."""

    name: str
    digest: str
    model_path: str | None = None
    served_name: str | None = None
    #: repository and commit of the weights; None where somebody else brought them
    repository: str | None = None
    revision: str | None = None
    flags: dict[str, Any] = {}


class Gpu(Part):
    """One GPU as the driver names it."""

    name: str
    uuid: str | None = None
    power_limit_w: float | None = None


class Hardware(Part):
    """What it ran on, as read from the driver, not as declared."""

    gpus: list[Gpu] = []
    driver_version: str | None = None

    @property
    def summary(self) -> str:
        """Such as ``8 x NVIDIA RTX PRO 6000``; differing names are listed."""
        counts: dict[str, int] = {}
        for gpu in self.gpus:
            counts[gpu.name] = counts.get(gpu.name, 0) + 1
        return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU was read"


class BenchResult(Part):
    """A benchmark run: what was measured on what, and every point of it."""

    schema_: Literal["rackwell.bench/1"] = pydantic.Field(default="rackwell.bench/1", alias="schema")
    run_id: str
    container: str
    host: str
    date_utc: str
    bench: str
    #: of what the sweep says, not of how it is written; None in results from before it was kept
    bench_digest: str | None = None
    release: Release | None = None
    profile: ProfileRef | None = None
    hardware: Hardware = Hardware()
    client: Software = Software()
    points: list[BenchPoint]

    @property
    def valid(self) -> bool:
        """Whether there are points, and every one of them counts."""
        return bool(self.points) and all(point.valid for point in self.points)

    @property
    def best(self) -> BenchPoint | None:
        """The valid point with the highest output throughput."""
        usable = [point for point in self.points if point.valid and point.throughput is not None]
        return max(usable, key=lambda p: p.throughput.output_tok_per_s if p.throughput else 0.0, default=None)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, with ``schema`` in front."""
        return self.model_dump(mode="json", by_alias=True)


def assemble(
    points: Iterable[Mapping[str, Any]],
    *,
    run_id: str,
    container: str,
    host: str,
    date_utc: str,
    bench: str,
    bench_digest: str | None = None,
    release: Release | None = None,
    profile: ProfileRef | None = None,
) -> BenchResult:
    """A run from the ``rackwell_result`` of each ``bench_point``, in the order of concurrency.

    Hardware and client are taken from what the points read. The last result wins where a point came twice.

    Raises:
        pydantic.ValidationError: a point is not ``rackwell.bench_point/1``.
    """
    by_concurrency = {point.concurrency: point for point in map(BenchPoint.model_validate, points)}
    ordered = [by_concurrency[key] for key in sorted(by_concurrency)]
    seen = next((p.telemetry for p in ordered if p.telemetry is not None and p.telemetry.gpus), None)
    gpus = seen.gpus if seen else []
    return BenchResult(
        run_id=run_id,
        container=container,
        host=host,
        date_utc=date_utc,
        bench=bench,
        bench_digest=bench_digest,
        release=release,
        profile=profile,
        hardware=Hardware(
            gpus=[Gpu(name=g.name or "unnamed GPU", uuid=g.uuid, power_limit_w=g.power_limit_w) for g in gpus],
            driver_version=seen.driver_version if seen else None,
        ),
        client=next((p.client for p in ordered if p.client.version), Software()),
        points=ordered,
    )
