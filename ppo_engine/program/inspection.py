"""Keeps what a step worked on when its numbers were not finite, so that a person can see which text did it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ppo_engine.errors import NonFinite
from ppo_engine.rundir import RunDir
from ppo_engine.trainer import Trainer


def keep_for_inspection(trainer: Trainer, run: RunDir, attempt: int, error: NonFinite) -> Path:
    """Write texts and tensors of the step under way: `texts.jsonl`, `batch.safetensors`, `reason.txt`."""
    folder = run.inspection(trainer.step + 1, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reason.txt").write_text(f"{error.message}\n", encoding="utf-8")
    (folder / "texts.jsonl").write_text("".join(_texts(trainer)), encoding="utf-8")
    save_file(dict(_tensors(trainer)), folder / "batch.safetensors")
    return folder


def _texts(trainer: Trainer) -> Iterator[str]:
    rollout = trainer.rollout
    if rollout is None:
        return
    for exchange, score in zip(rollout.exchanges, rollout.scores.total, strict=True):
        yield json.dumps({"prompt": exchange.prompt, "response": exchange.response, "score": score}) + "\n"


def _tensors(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    rollout, batch = trainer.rollout, trainer.batch
    if rollout is not None:
        yield "sampler_logprobs", _plain(rollout.sampler_logprobs)
        for part in fields(rollout.sequences):
            value = getattr(rollout.sequences, part.name)
            if isinstance(value, Tensor):
                yield part.name, _plain(value)
    if batch is not None:
        for part in fields(batch):
            value = getattr(batch, part.name)
            if isinstance(value, Tensor):
                yield part.name, _plain(value)


def _plain(tensor: Tensor) -> Tensor:
    """A copy of its own, on the CPU: safetensors takes no shared memory."""
    return tensor.detach().to("cpu", copy=True).contiguous().clone(memory_format=torch.contiguous_format)
