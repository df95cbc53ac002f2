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
    """Of one latency over all requests (of ``itl_ms``: over all gaps between chunks), in milliseconds.

    Our own measurements have them all; None only where an imported run does not tell one.
    """

    mean: float
    min: float | None = None
    max: float | None = None
    p50: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


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
    malformed: int = 0


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
    """One GPU in the window. ``energy_source``: counter of the device, or integral of its power.

    ``throttle``: share of the samples (0 to 1) in which the driver named that reason for lower clocks.
    """

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
    memory_clock_mhz: Series = Series()
    memory_utilization_pct: Series = Series()
    pcie_tx_mb_per_s: Series = Series()
    pcie_rx_mb_per_s: Series = Series()
    throttle: dict[str, float] = {}
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
    #: what sampling itself cost, in shares of one core
    cpu_share: float | None = None
    #: how often, and for how long at most, no sample came for more than three periods
    gaps: int = 0
    longest_gap_s: float | None = None
    #: of the whole machine that the server runs on (the container's view), in percent of all cores
    cpu_pct: Series = Series()

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


class SteadyState(Part):
    """The part of the window in which the client kept its streams busy; ramp and tail are cut off.

    ``start_s`` and ``end_s`` count from the window's start. Each request counts evenly over its own time. The latencies
    are without each stream's first request, which is part of the burst at the start. ``why`` says why there is none;
    the rest is None then.
    """

    start_s: float | None = None
    end_s: float | None = None
    output_tok_per_s: float | None = None
    total_tok_per_s: float | None = None
    request_per_s: float | None = None
    concurrency: float | None = None
    ttft_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    why: str | None = None


class Timeline(Part):
    """The point second by second: ``t`` is the middle of each slice, from the window's start."""

    t: list[float] = []
    output_tok_per_s: list[float | None] = []
    in_flight: list[float | None] = []
    server_running: list[float | None] = []
    server_queued: list[float | None] = []
    kv_usage_pct: list[float | None] = []


class ClientLoad(Part):
    """What the load generator itself did: whether it, and not the server, set the pace.

    ``loop_lag``: how much later than due its event loop ran. ``cpu_pct``: of one core. ``bound``: the point
    measures the client; ``why`` says by which of the signs. ``in_flight_mean``: requests that the client had sent and
    whose answer had not ended, over the steady part.
    """

    loop_lag_ms: Distribution | None = None
    cpu_pct: float | None = None
    in_flight_mean: float | None = None
    bound: bool = False
    why: list[str] = []


class ServerLoad(Part):
    """The server's own metrics inside the window; None where it does not offer them. ``source``: the endpoint."""

    source: str | None = None
    samples: int = 0
    running_mean: float | None = None
    running_max: float | None = None
    queued_mean: float | None = None
    queued_max: float | None = None
    kv_usage_max_pct: float | None = None
    prefix_cache_hit_pct: float | None = None
    accept_length: float | None = None
    preemptions: float | None = None


class Flush(Part):
    """Whether the server's prefix cache was empty when the clock started, and how that is known."""

    proved: bool
    how: str


class Sanity(Part):
    """Sampled answers of the measured requests, checked for garbage as in the known-answer gate."""

    checked: int
    bad: int
    example: str | None = None
    why: str | None = None


class ForeignLoad(Part):
    """A process on the GPUs that is not the server's."""

    gpu: int
    pid: int | None = None
    name: str | None = None
    memory_mib: float | None = None


class BenchPoint(Part):
    """One point of a sweep: lengths, concurrency, and the number of its repeat; as ``bench_point`` returns it.

    Attributes:
        latency_samples: thinned raw values by name (``ttft_ms``, ``itl_ms``, ``e2e_ms``, ``request_tok_per_s``), for
            resampling; at most some hundred each, quantiles of equal distance.
        findings: what ``rackwell diagnose`` found in the lines of a server that died, as in ``rackwell.diagnosis/1``.
    """

    schema_: Literal["rackwell.bench_point/1"] = pydantic.Field(default="rackwell.bench_point/1", alias="schema")
    concurrency: int
    num_prompts: int
    input_tokens: int
    output_tokens: int
    repeat: int = 1
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
    latency_samples: dict[str, list[float]] = {}
    telemetry: Telemetry | None = None
    steady: SteadyState | None = None
    timeline: Timeline | None = None
    client_load: ClientLoad | None = None
    server_load: ServerLoad | None = None
    flush: Flush | None = None
    sanity: Sanity | None = None
    foreign: list[ForeignLoad] = []
    findings: list[dict[str, Any]] = []

    @property
    def load(self) -> tuple[int, int, int]:
        """What is compared with what: input tokens, output tokens, concurrency."""
        return self.input_tokens, self.output_tokens, self.concurrency

    @property
    def client_bound(self) -> bool:
        """Whether the point measures the load generator instead of the server."""
        return self.client_load is not None and self.client_load.bound

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


class Topology(Part):
    """The newest validation of the GPUs before the run: its verdict and the figures that explain decoding.

    ``allreduce_us``: time of one allreduce over all GPUs by message size in bytes. ``p2p_gb_per_s``: the matrix of the
    kernel copies, [source][destination], None on the diagonal.
    """

    verdict: str | None = None
    date_utc: str | None = None
    boot_id: str | None = None
    allreduce_us: dict[int, float] = {}
    p2p_gb_per_s: list[list[float | None]] = []
    p2p_latency_us: float | None = None
    memory_gb_per_s: float | None = None


class Origin(Part):
    """Where a run comes from that rackwell did not measure itself. ``lost``: what that tool does not tell."""

    tool: str
    version: str | None = None
    file: str | None = None
    sha256: str | None = None
    lost: list[str] = []


class BenchResult(Part):
    """A benchmark run: what was measured on what, and every point of it.

    Attributes:
        sweep: what the bench file says, defaults written out.
        profile_content: the serving profile, secrets masked; what a comparison attributes a difference to.
        environment: other parts that may differ: kernel, driver, NCCL variables, power limits... by name.
        complete: False while a sweep is interrupted; the same command goes on with it.
        origin: None for a run of our own.
    """

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
    sweep: dict[str, Any] = {}
    profile_content: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    topology: Topology | None = None
    complete: bool = True
    #: of the seeds: no two runs ask the same prompts
    salt: str | None = None
    origin: Origin | None = None

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
    """A run from the ``rackwell_result`` of each ``bench_point``, in the order of lengths, concurrency and repeat.

    Hardware and client are taken from what the points read. The last result wins where a point came twice.

    Raises:
        pydantic.ValidationError: a point is not ``rackwell.bench_point/1``.
    """
    by_key = {(*point.load, point.repeat): point for point in map(BenchPoint.model_validate, points)}
    ordered = [by_key[key] for key in sorted(by_key)]
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
