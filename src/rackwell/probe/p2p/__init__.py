# SPDX-License-Identifier: Apache-2.0
"""What the GPUs send each other: is it right, how fast, how soon, and what remains of that when all do it at once.

``src`` -> ``dst`` is always the way the bytes move. A *write* is pushed by the engine of ``src``, a *read* is pulled by
that of ``dst``; the engine is the copy engine (``copy``) or the multiprocessors (``kernel``). GB = 1e9 bytes.
"""
