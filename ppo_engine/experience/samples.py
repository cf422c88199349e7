"""Stored responses: what a person reads of a step, token by token if asked, and their file in the run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ppo_engine.batch import Advantages, RolloutBatch
from ppo_engine.events import Sample, TokenValues
from ppo_engine.experience.rollout import Rollout


def samples_of(rollout: Rollout, kl: Sequence[float] | None, count: int, *, evaluation: bool = False) -> list[Sample]:
    """The first `count` responses of a rollout; `kl` in nats per response."""
    components = rollout.scores.components
    return [
        Sample(
            prompt=exchange.prompt,
            response=exchange.response,
            score=rollout.scores.total[i],
            components={name: score for name, values in components.items() if (score := values[i]) is not None},
            kl=None if kl is None else kl[i],
            response_tokens=exchange.response_tokens,
            finished=rollout.finished[i],
            evaluation=evaluation,
        )
        for i, exchange in enumerate(rollout.exchanges[:count])
    ]


def token_values(row: int, batch: RolloutBatch, targets: Advantages, tokenizer: PreTrainedTokenizerBase) -> TokenValues:
    """What the step knew of every token of one response."""
    present, trained = batch.sequences.response_present[row], batch.mask[row]

    def column(values: Tensor) -> list[float | None]:
        kept = torch.where(trained, values[row], torch.nan)[present].tolist()
        return [None if math.isnan(value) else value for value in kept]

    with_reference = batch.ref_logprobs is not None
    return TokenValues(
        tokens=[str(tokenizer.decode([token])) for token in batch.sequences.response_ids[row][present].tolist()],
        logprobs=column(batch.old_logprobs),
        ref_logprobs=column(batch.ref_logprobs) if batch.ref_logprobs is not None else None,
        kl=column(batch.kl) if with_reference else None,
        values=column(batch.old_values),
        advantages=column(targets.advantages),
    )


def append_samples(path: Path, step: int, samples: Sequence[Sample]) -> None:
    """One JSON line per sample."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"step": step, **sample.model_dump(exclude_none=True)}) + "\n" for sample in samples)


def forget_samples_after(path: Path, step: int) -> None:
    """Drop lines of steps that a resumed run will do again, and a line that a crash cut short."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_until(line, step)]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    partial.replace(path)


def _is_until(line: str, step: int) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError):
        return False
