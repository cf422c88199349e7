"""How near the optimise phase is to the time that its matrix products alone would take on this machine.

    python -m benchmarks.floor [WORKLOAD ...] [--steps 5]

The floor is the operations of one optimise phase (matrix products and attention, as torch counts them) divided by the
rate that `torch.matmul` reaches on the model's own shapes in the same precision.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.our_side import load, spec
from benchmarks.setting_up import make_models
from benchmarks.workloads import WORKLOADS
from ppo_engine.config import TrainConfig
from ppo_engine.experience.rollout import Rollout
from ppo_engine.summary import Stopwatch
from ppo_engine.trainer import Trainer

REPEATS = 20


def main() -> None:
    """Print one row per workload and precision."""
    os.environ.setdefault("BENCH_THREADS", str(len(os.sched_getaffinity(0))))
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=["gpt2", "smollm2"])
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    models = make_models()
    for name in arguments.workloads:
        for precision in ("fp32", "bf16"):
            trainer = load(TrainConfig.model_validate(spec(WORKLOADS[name], precision)), models)
            print(
                json.dumps({"workload": name, "precision": precision, **measure(trainer, arguments.steps)}), flush=True
            )


def measure(trainer: Trainer, steps: int) -> dict[str, float]:
    """Seconds of the optimise phase, its operations, the machine's rate, and the share of the floor that is reached."""
    next(trainer.steps())
    seconds = [next(trainer.steps()).stats.scalars["time/ppo/optimize_step"] for _ in range(steps)]
    rollout = trainer.collect(Stopwatch())
    with FlopCounterMode(display=False) as counter:
        trainer.learn(rollout, Stopwatch())
    hidden = trainer.models.policy.language.head.hidden_size
    rate = matmul_rate(hidden, trainer.weights.dtype)
    forward = evaluation_flops(trainer, rollout)
    floor = (counter.get_total_flops() - forward) / rate
    median = statistics.median(seconds)
    return {"optimise_seconds": median, "floor_seconds": floor, "gflops": rate / 1e9, "share": floor / median}


def evaluation_flops(trainer: Trainer, rollout: Rollout) -> float:
    """Operations of the passes before the optimise phase, which `learn` makes too."""
    with FlopCounterMode(display=False) as counter:
        trainer.measure(rollout.sequences, trainer.distribution)
    return float(counter.get_total_flops())


def matmul_rate(hidden: int, dtype: torch.dtype) -> float:
    """Operations per second of [512, H] x [H, 4H]."""
    a, b = torch.randn(512, hidden, dtype=dtype), torch.randn(hidden, 4 * hidden, dtype=dtype)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.matmul(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 512 * hidden * 4 * hidden / best


if __name__ == "__main__":
    main()
