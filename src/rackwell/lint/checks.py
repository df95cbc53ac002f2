# SPDX-License-Identifier: Apache-2.0
"""The named functions that rules call where a condition is not enough: anything that goes over all flags or variables.

Each gives one `Match` for each thing that it finds; its values fill the rule's texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

from rackwell.lint import flags
from rackwell.lint.context import Context, number
from rackwell.lint.matches import Match
from rackwell.lint.tables import Table, Tables
from rackwell.site.validation import near

Check = Callable[[Context, Tables], Iterator[Match]]

#: What the containers and the release set themselves, by what it is good for.
_CACHES = (
    "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_CUBIN_DIR", "FLASHINFER_AUTOTUNE_DIR", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR", "CUDA_CACHE_PATH",
    "XDG_CACHE_HOME", "TVM_FFI_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "SGLANG_CUTE_AOT_CACHE_DIR", "TILELANG_CACHE_DIR",
)  # fmt: skip
_SECRET = ("TOKEN", "API_KEY", "SECRET", "PASSWORD")
_ENGINES = {"SGLANG_": "sglang", "SGL_": "sglang", "FLASHINFER_": "flashinfer-python"}


def cache_variables(context: Context, tables: Tables) -> Iterator[Match]:
    """Cache directories, which belong to the release."""
    del tables
    for name in context.environment:
        if name in _CACHES:
            yield Match({"name": name}, (("environment", name),))


def secret_variables(context: Context, tables: Tables) -> Iterator[Match]:
    """Secrets in a profile."""
    del tables
    for name, value in context.environment.items():
        if any(name.endswith(word) for word in _SECRET) and str(value):
            yield Match({"name": name}, (("environment", name),))


def _engine_variables(context: Context) -> Iterator[tuple[str, str, Table]]:
    """(variable, project, table) for each variable that by its name is an engine's, and that a table can judge."""
    for name in context.environment:
        project = next((project for prefix, project in _ENGINES.items() if name.startswith(prefix)), "")
        table = {"sglang": context.table, "flashinfer-python": context.flashinfer_table}.get(project)
        if table is not None and table.environment:
            yield name, project, table


def _read_by(name: str, table: Table, context: Context) -> bool:
    # SGLang hands on what begins with SGL_ under the new prefix, and its own variables reach FlashInfer's process
    names = {name, name.replace("SGL_", "SGLANG_", 1)} if name.startswith("SGL_") else {name}
    others = [other.variables for other in (context.table, context.flashinfer_table) if other is not None]
    return any(known in variables for known in names for variables in [table.variables, *others])


def unread_everywhere(context: Context, tables: Tables) -> Iterator[Match]:
    """Variables of an engine that no release reads."""
    for name, project, table in _engine_variables(context):
        if _read_by(name, table, context) or any(_read_by(name, other, context) for other in tables.all(project)):
            continue
        known = {variable for other in tables.all(project) for variable in other.variables}
        hint = near(name, table.variables, 0.8) or near(name, known, 0.85)
        fix = f"did you mean {hint}?" if hint else "remove it"
        yield Match({"name": name, "project": project, "fix": fix}, (("environment", name),))


def unread_here(context: Context, tables: Tables) -> Iterator[Match]:
    """Variables of an engine that other releases read, and this one does not."""
    for name, project, table in _engine_variables(context):
        if _read_by(name, table, context):
            continue
        readers = [other.version for other in tables.all(project) if _read_by(name, other, context)]
        if readers:
            span = readers[0] if len(readers) == 1 else f"{readers[0]} to {readers[-1]}"
            yield Match(
                {"name": name, "project": project, "span": span, "version": table.version}, (("environment", name),)
            )


def deprecated_variables(context: Context, tables: Tables) -> Iterator[Match]:
    """Variables that this release warns of."""
    del tables
    for name, _, table in _engine_variables(context):
        variable = table.variables.get(name)
        if variable is not None and variable.deprecated:
            yield Match({"name": name, "successor": variable.successor or "nothing"}, (("environment", name),))
        elif variable is None and name.startswith("SGL_") and (new := "SGLANG_" + name[4:]) in table.variables:
            yield Match({"name": name, "successor": new}, (("environment", name),))


def json_flags(context: Context, tables: Tables) -> Iterator[Match]:
    """Flags whose value must be JSON, and is not."""
    del tables
    for name, value in context.flags.items():
        option = context.table.by_name.get(name) if context.table is not None else None
        wanted = (option is not None and option.type == "json") or name in _JSON
        if not wanted or not isinstance(value, str):
            continue
        try:
            json.loads(value)
        except ValueError as error:
            yield Match({"name": name, "error": str(error)}, (("flags", name),))


_JSON = {"model-loader-extra-config", "json-model-override-args", "preferred-sampling-params"}


def kv_memory(context: Context, tables: Tables) -> Iterator[Match]:
    """How many tokens of KV cache each of `max-running-requests` requests has, when all of them run."""
    del tables
    asked = number(context.flag("max-running-requests"))
    pool = kv_pool(context)
    if not asked or pool is None:
        return
    tokens, assumed = pool
    need = context.machine.get("bench_tokens")
    wanted = float(need) if need else 128.0
    each = tokens / asked
    if each < wanted:
        source = "of the profile's benchmark" if need else "assumed, for lack of a benchmark"
        yield Match(
            {
                "requests": int(asked),
                "tokens": math.floor(tokens),
                "each": math.floor(each),
                "wanted": int(wanted),
                "source": source,
                "assumed": assumed,
                "fitting": max(1, math.floor(tokens / wanted)),
            }
        )


def kv_pool(context: Context) -> tuple[float, str] | None:
    """Tokens that fit into the KV cache of the profile, and from what this was reckoned; None when it cannot be."""
    model, gpu = context.model, context.gpu
    weights, memory = number(model.get("resident_gb")), number(gpu.get("memory_gib"))
    width = number(model.get("kv_values_per_token"))
    ranks = number(context.flag("tp-size", 1))
    if not (weights and memory and width and ranks):
        return None
    fraction = number(context.flag("mem-fraction-static"))
    assumption = ""
    if fraction is None or not 0 < fraction < 1:
        fraction, assumption = 0.85, ", assumed"
    bytes_each = {"fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp4_e2m1": 0.5}.get(context.kv_dtype, 2.0)
    left = memory * (1 << 30) * fraction - weights * 1e9 / ranks
    # latent attention keeps the whole cache on each rank, others share the heads out
    share = 1.0 if model.get("kv_replicated") else ranks
    tokens = max(0.0, left) / (width * bytes_each / share)
    assumed = (
        f"{model.get('name')}: {weights / ranks:,.0f} GB of weights on each of {ranks:.0f} GPUs with {memory:g} GiB, "
        f"mem-fraction-static {fraction:g}{assumption}, "
        f"{width * bytes_each / share / 1000:,.1f} kB a token ({context.kv_dtype})"
    )
    return tokens, assumed


def weights_fit(context: Context, tables: Tables) -> Iterator[Match]:
    """Weights that leave no room, or do not fit at all."""
    del tables
    weights, memory = number(context.model.get("resident_gb")), number(context.gpu.get("memory_gib"))
    ranks = (number(context.flag("tp-size", 1)) or 1) * (number(context.flag("pp-size", 1)) or 1)
    fraction = number(context.flag("mem-fraction-static")) or 0.85
    if weights and memory and weights * 1e9 / ranks > memory * (1 << 30) * fraction:
        yield Match({"each": weights / ranks, "room": memory * (1 << 30) * fraction / 1e9, "ranks": int(ranks)})


def probe_environment(context: Context, tables: Tables) -> Iterator[Match]:
    """NCCL's variables that differ between the server and the measurement of its collectives."""
    del tables
    for name, value in context.probe_environment.items():
        mine = context.environment.get(name)
        if name.startswith("NCCL_") and mine is not None and str(mine) != str(value):
            yield Match({"name": name, "server": mine, "probe": value}, (("environment", name),))


def aliases_given_twice(context: Context, tables: Tables) -> Iterator[Match]:
    """One option under two of its names."""
    del tables
    seen: dict[tuple[str, ...], str] = {}
    for name in context.flags:
        names = tuple(sorted(context.names_of(name)))
        first = seen.setdefault(names, name)
        if first != name:
            yield Match({"first": first, "second": name}, (("flags", name), ("flags", first)))


def from_comments(context: Context, tables: Tables) -> Iterator[Match]:
    """Nothing: these rules are about the comments in files, which `rackwell.lint.ignore` reads."""
    del context, tables
    yield from ()


CHECKS: dict[str, Check] = {
    "aliases-given-twice": aliases_given_twice,
    "cache-variables": cache_variables,
    "deprecated-variables": deprecated_variables,
    "from-comments": from_comments,
    "json-flags": json_flags,
    "kv-memory": kv_memory,
    "probe-environment": probe_environment,
    "secret-variables": secret_variables,
    "unread-everywhere": unread_everywhere,
    "unread-here": unread_here,
    "weights-fit": weights_fit,
    **flags.CHECKS,
}
