# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: how the real one dies, in its own words.

Texts of SGLang 0.5.16 on H200 GPUs, shortened to the frames that matter; those marked * were put together from public
reports, since these machines cannot show them. ``{package}`` is the folder of the installed sglang.
"""

from __future__ import annotations

import dataclasses

PARSE, LOAD, SERVE = "parse", "load", "serve"
KILLED = -9


@dataclasses.dataclass(frozen=True)
class Death:
    """One way to die.

    Attributes:
        stage: parse: in the parent, before any child; load: in the schedulers; serve: soon after it is ready.
        code: exit code; `KILLED`: by its own SIGKILL, as after every failure of a child.
        error: the exception as its traceback ends. before: lines that come before it, of each rank.
        raw: the whole text instead, for what is no traceback.
    """

    stage: str
    error: str = ""
    code: int = KILLED
    before: tuple[str, ...] = ()
    raw: str = ""


_CUDA_TAIL = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

DEATHS: dict[str, Death] = {
    "oom-load": Death(
        LOAD,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 94.97 "
        "GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 93.84 GiB memory in use. Of the "
        "allocated memory 92.84 GiB is allocated by PyTorch, and 25.25 MiB is reserved by PyTorch but unallocated.",
    ),
    "kv-memory": Death(
        LOAD,
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise "
        "--mem-fraction-static above 0.612 (minimum viable = 1 - available/pre = 0.6115). If using speculative "
        "decoding, draft weights are now counted.",
    ),
    "gpu-occupied": Death(
        LOAD,
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre_model_load_memory=77.801513671875, local_gpu_memory=138.31280517578125, "
        "local_gpu_memory * 0.9=124.48152465820313",
    ),
    "invalid-device": Death(
        LOAD,
        "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?" + _CUDA_TAIL,
    ),
    # *
    "no-architecture": Death(
        LOAD,
        "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
        before=("FlashInfer: compiling module trtllm_comm",),
    ),
    # *
    "nccl-interface": Death(
        LOAD,
        "torch.distributed.DistBackendError: NCCL error in: "
        "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error - please report this issue to the NCCL "
        "developers, NCCL version 2.27.5\n"
        "ncclInternalError: Internal check failed.\nLast error:\n"
        "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
        before=("NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2",),
    ),
    "parser": Death(
        LOAD,
        "ValueError: think_end_token '</think>' must encode to exactly one token, got 3 tokens: [27, 14, 339]. "
        "The tokenizer does not fit the reasoning parser 'glm45'.",
    ),
    "rank-killed": Death(
        LOAD,
        raw="Subprocess scheduler_3 (pid=4261) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n",
    ),
    "model-missing": Death(
        PARSE,
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/models/glm-5'. "
        "Use `repo_type` argument if needed.",
        1,
    ),
    "no-gpu": Death(
        PARSE,
        "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available.",
        1,
    ),
    "unknown-flag": Death(
        PARSE,
        code=2,
        raw="usage: sglang serve [-h] --model-path MODEL_PATH\n"
        "                    [--tokenizer-path TOKENIZER_PATH]\n"
        "sglang serve: error: unrecognized arguments: --enable-nsa-turbo 7\n",
    ),
    # *
    "page-table": Death(
        SERVE,
        "AttributeError: 'PrefillMetadata' object has no attribute 'page_table_1_flattened'",
    ),
}
