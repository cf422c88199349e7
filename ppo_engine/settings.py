"""The environment of an engine process: what libraries read once, when they are imported or first used."""

from __future__ import annotations

import os

DEFAULTS = {
    # Large tensors lie on huge pages where the kernel has them (Linux, `madvise`). Gradients, activations and caches
    # come and go at every step, and each time the kernel hands out their memory page by page: pages of 4 KiB cost more
    # than the arithmetic of an optimizer step (benchmarks/RESULTS.md).
    "THP_MEM_ALLOC_ENABLE": "1",
    # wandb would send reports to its makers, even from an offline run.
    "WANDB_ERROR_REPORTING": "false",
}


def prepare_environment() -> None:
    """Set what the operator has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
