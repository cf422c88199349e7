"""One PPO step after the other with this engine, each when a line comes in; the twin of trl_side.py.

    python -m benchmarks.our_side WORKLOAD MODELS --precision fp32|bf16|auto [--replay CASE.json]

With --replay the first line out says how far the statistics of TRL's recorded first step and ours differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.workloads import LINEAR_LAYERS, WORKLOADS, Workload
from ppo_engine import runtime
from ppo_engine.batch import make_sequences
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig
from ppo_engine.settings import prepare_environment
from ppo_engine.trainer import Trainer

COMPARED = (
    "objective/kl",
    "objective/entropy",
    "ppo/mean_scores",
    "ppo/mean_non_score_reward",
    "ppo/loss/policy",
    "ppo/loss/value",
    "ppo/loss/total",
    "ppo/policy/entropy",
    "ppo/policy/approxkl",
    "ppo/policy/policykl",
    "ppo/policy/clipfrac",
    "ppo/returns/mean",
    "ppo/val/vpred",
    "ppo/val/error",
)


def main() -> None:
    """Answer `step` lines until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("models", type=Path)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--replay", type=Path)
    arguments = parser.parse_args()
    prepare_environment()  # as the engine's program does
    work = WORKLOADS[arguments.workload]
    config = TrainConfig.model_validate(spec(work, arguments.precision))
    if arguments.replay is not None:
        print(json.dumps(differences(config, arguments.models, json.loads(arguments.replay.read_text()))), flush=True)
        return
    trainer = load(config, arguments.models)
    print(json.dumps({"ready": True, "loaded_bytes": peak_bytes(trainer)}), flush=True)
    for line in sys.stdin:
        if line.strip() != "step":
            break
        print(json.dumps(one_step(trainer)), flush=True)
    print(json.dumps({"peak_bytes": peak_bytes(trainer)}), flush=True)


def load(config: TrainConfig, models: Path) -> Trainer:
    """The trainer, with the thread count that both sides share."""
    accelerator = runtime.start(config.resources, threads=int(os.environ["BENCH_THREADS"]))
    return build_trainer(config, accelerator, roots=[models], on_phase=lambda _: None)[0]


def peak_bytes(trainer: Trainer) -> int:
    """Peak memory so far."""
    return runtime.peak_memory_bytes(trainer.accelerator.device)


def spec(work: Workload, precision: str) -> dict[str, Any]:
    """The workload as a spec."""
    model: dict[str, Any] = {"policy": {"path": work.model}, "trainable_layers": work.trainable_layers}
    if work.lora_rank is not None:
        model["lora"] = {"rank": work.lora_rank, "alpha": 32, "target_modules": LINEAR_LAYERS}
    return {
        "model": model,
        "prompts": {"inline": work.prompts, "chat": {} if work.chat else None, "shuffle": False},
        "rewards": [{"name": "length", "rule": {"name": "length", "params": {"target": 20}}}],
        "generation": {"max_new_tokens": work.max_new_tokens, "min_new_tokens": work.min_new_tokens},
        "ppo": {
            "steps": 1_000_000,
            "batch_size": work.batch_size,
            "minibatch_size": work.minibatch_size,
            "ppo_epochs": work.ppo_epochs,
        },
        "optimizer": {"learning_rate": 1e-5},
        "resources": {"precision": precision},
    }


def one_step(trainer: Trainer) -> dict[str, float]:
    """Seconds of one step, by phase."""
    start = time.perf_counter()
    scalars = next(trainer.steps()).stats.scalars
    return {
        "seconds": time.perf_counter() - start,
        "generation_seconds": scalars["time/ppo/rollout"],
        "tokens": scalars["tokens/responses_len_mean"] * trainer.config.ppo.batch_size,
        "forward_seconds": scalars["time/ppo/forward_pass"],
        "optimise_seconds": scalars["time/ppo/optimize_step"],
    }


def differences(config: TrainConfig, models: Path, case: dict[str, Any]) -> dict[str, Any]:
    """TRL's first step again: largest difference of the statistics that both report, relative to 1 or the value."""
    trainer = load(config, models)
    sequences = make_sequences(case["queries"], case["responses"], pad_id=0)
    order = iter(case["permutations"])
    update = trainer.update(sequences, case["scores"], permutations=lambda _: next(order))
    ours = trainer.scalars(update)
    found = {key: abs(ours[key] - case["stats"][key]) / max(1.0, abs(case["stats"][key])) for key in COMPARED}
    worst = max(found, key=lambda key: found[key])
    return {"worst": worst, "difference": found[worst], "ours": ours[worst], "trl": case["stats"][worst]}


if __name__ == "__main__":
    main()
