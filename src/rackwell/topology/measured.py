# SPDX-License-Identifier: Apache-2.0
"""The figures of ``rackwell.gpu/1``: what was measured, before anybody judged it.

``src -> dst`` is the direction in which the bytes move. GB is 1e9 bytes. A list that is absent was not measured.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from rackwell.topology.model import Pair, Part


class Capability(Part):
    """What the driver claims about an ordered pair; a claim, not a proof."""

    src: int
    dst: int
    read: bool | None = None
    write: bool | None = None
    atomics: bool | None = None
    performance_rank: int | None = None


class Data(Part):
    """One transfer whose result was compared byte by byte.

    Attributes:
        op: write - the engine of src pushes; read - that of dst pulls; atomic - native atomics over the link.
        wrong: words that differ. first: offset of the first one. kind: what stood there instead: the poison that was
            there before (dropped), zeros, or something else.
    """

    src: int
    dst: int
    engine: str = ""
    op: str = ""
    ok: bool = False
    bytes: int = 0
    wrong: int = 0
    first: int | None = None
    kind: str | None = None
    source_intact: bool | None = None


class Bandwidth(Part):
    """One direction of a pair, in GB/s. ways 2: while the reverse direction runs as well."""

    src: int
    dst: int
    engine: Literal["copy", "kernel"]
    op: Literal["write", "read"]
    ways: Literal[1, 2] = 1
    samples: list[float] = pydantic.Field(default_factory=list)
    gb_per_s: float | None = None


class Latency(Part):
    """One direction of a pair, in microseconds."""

    src: int
    dst: int
    kind: str
    samples: list[float] = pydantic.Field(default_factory=list)
    us: float | None = None


class Concurrent(Part):
    """Several transfers at once. gb_per_s is the median of the sums of all flows."""

    pattern: str
    op: str = ""
    flows: list[Pair] = pydantic.Field(default_factory=list)
    flow_gb_per_s: list[float | None] = pydantic.Field(default_factory=list)
    samples: list[float] = pydantic.Field(default_factory=list)
    gb_per_s: float | None = None
    verified: bool | None = None


class Memory(Part):
    """A GPU's own memory, read and written, in GB/s."""

    gpu: int
    gb_per_s: float | None = None


class P2p(Part):
    """All about pairs. ``at`` says where it stood when it did not come to its end."""

    size: int | None = None
    capability: list[Capability] = pydantic.Field(default_factory=list)
    data: list[Data] = pydantic.Field(default_factory=list)
    bandwidth: list[Bandwidth] = pydantic.Field(default_factory=list)
    latency: list[Latency] = pydantic.Field(default_factory=list)
    concurrent: list[Concurrent] = pydantic.Field(default_factory=list)
    memory: list[Memory] = pydantic.Field(default_factory=list)
    errors: list[dict[str, Any]] = pydantic.Field(default_factory=list)
    state: str = "done"
    at: dict[str, Any] | None = None


class Port(Part):
    """A PCIe port on the way from a root to a GPU, the GPU's own included. aer: counters before and after."""

    bdf: str
    kind: str = ""
    speed_gt_s: float | None = None
    width: int | None = None
    max_speed_gt_s: float | None = None
    max_width: int | None = None
    aer: dict[str, list[int | None]] | None = None


class NvLink(Part):
    """The NVLinks of one GPU."""

    active: int | None = None
    version: Any = None
    gb_per_s_one_way: float | None = None


class Link(Part):
    """A GPU's link: what it can do, and what it was trained to while copies ran."""

    gpu: int
    bus_id: str = ""
    gen_gpu_max: int | None = None
    gen_host_max: int | None = None
    gen_load: int | None = None
    width_max: int | None = None
    width_load: int | None = None
    idle_gen: int | None = None
    replays: list[int | None] | None = None
    bar1_total: int | None = None
    ports: list[Port] = pydantic.Field(default_factory=list)
    nvlink: NvLink | None = None


class Health(Part):
    """What NVML says of one GPU, before anything was measured. memory_used: bytes."""

    gpu: int
    ecc_uncorrected: int | None = None
    recovery_action: str | None = None
    remapped_pending: bool | None = None
    processes: int | None = None
    memory_used: int | None = None
    utilization: float | None = None


class Allreduce(Part):
    """An allreduce of one size. GB/s; us: median of the samples."""

    bytes: int
    us: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    samples_us: list[float] = pydantic.Field(default_factory=list)
    wrong: int | None = None
    in_place: dict[str, Any] | None = None


class Collectives(Part):
    """NCCL's allreduce over all GPUs, or why it was not measured."""

    state: str = "skipped"
    why: str | None = None
    library: str | None = None
    nccl_version: str | None = None
    ranks: int | None = None
    points: list[Allreduce] = pydantic.Field(default_factory=list)
    bfloat16: Allreduce | None = None
    wrong: int | None = None
    error: dict[str, Any] | None = None
    at: dict[str, Any] | None = None
    detail: Any = None

    @pydantic.field_validator("nccl_version", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return None if value is None else str(value)


class Measurements(Part):
    """All that was measured."""

    cuda: dict[str, Any] | None = None
    p2p: P2p | None = None
    links: list[Link] = pydantic.Field(default_factory=list)
    health: list[Health] = pydantic.Field(default_factory=list)
    nvml: dict[str, Any] | None = None
    collectives: Collectives | None = None

    @pydantic.field_validator("links", "health", mode="before")
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return [] if value is None else value
