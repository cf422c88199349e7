"""The environment of an engine process: what torch reads before it makes its first tensor."""

from __future__ import annotations

import os


def prepare_environment() -> None:
    """Large tensors lie on huge pages where the kernel has them (Linux, `madvise`); what is set already stays.

    Gradients, activations and caches come and go at every step, and each time the kernel hands out their memory page by
    page: 4 KiB pages cost more than the arithmetic of an optimizer step (`benchmarks/RESULTS.md`).
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
