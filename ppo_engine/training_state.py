"""All that changes in a trainer, as JSON values and tensors: enough to go on bit for bit on the CPU.

The networks are not in here: they are saved as Hugging Face folders (`Models.folders`), and loaded before the trainer
is made. A reference that was reset is: it is no model that anyone would load.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ppo_engine.inheritance import Part
from ppo_engine.maths.shaping import RunningMoments
from ppo_engine.models.overlay import OverlaidReference
from ppo_engine.runtime import random_states, restore_random_states
from ppo_engine.trainer import Trainer


def capture(trainer: Trainer) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """JSON values, and tensors by the stem of their file."""
    values = {
        "step": trainer.step,
        "kl_coef": trainer.kl.value,
        "learning_rate_factor": trainer.learning_rate_factor,
        "moments": asdict(trainer.moments),
        "prompts": trainer.prompts.state_dict(),
        "texts": None if trainer.texts is None else trainer.texts.state_dict(),
        "evaluation": None if trainer.evaluator is None else trainer.evaluator.fingerprint,
        "critic_ready": trainer.critic_ready,
    }
    generators = {"sampling": trainer.sampling.get_state(), "shuffling": trainer.shuffling.get_state()}
    tensors = {
        "value": trainer.models.policy.value_head.state_dict(),
        "optimizer": _optimizer_tensors(trainer.optimizer),
        "rng": random_states() | generators,
    }
    reference = trainer.models.reference
    if isinstance(reference, OverlaidReference) and reference.was_reset:
        tensors["reference"] = reference.overlay.values
    return values, tensors


def restore(
    trainer: Trainer,
    values: dict[str, Any],
    tensors: dict[str, dict[str, Tensor]],
    anew: frozenset[Part] = frozenset(),
) -> None:
    """Put back what `capture` returned, but for the parts that begin anew; the weights were loaded already."""
    if Part.CRITIC not in anew:
        trainer.models.policy.value_head.load_state_dict(tensors["value"])
    if Part.TRAINING in anew:
        return
    trainer.step = int(values["step"])
    trainer.learning_rate_factor = float(values["learning_rate_factor"])
    trainer.critic_ready = bool(values["critic_ready"])
    if Part.KL not in anew:
        trainer.kl.value = float(values["kl_coef"])
    if Part.SCORES not in anew:
        trainer.moments = RunningMoments(**values["moments"])
    if Part.PROMPTS not in anew:
        trainer.prompts.load_state_dict(values["prompts"])
    if trainer.texts is not None and Part.TEXTS not in anew:
        trainer.texts.load_state_dict(values["texts"])
    _restore_optimizer(trainer.optimizer, tensors["optimizer"])
    if Part.RANDOM not in anew:
        _restore_random(trainer, tensors)


def _restore_random(trainer: Trainer, tensors: dict[str, dict[str, Tensor]]) -> None:
    rng = dict(tensors["rng"])
    trainer.sampling.set_state(rng.pop("sampling"))
    trainer.shuffling.set_state(rng.pop("shuffling"))
    restore_random_states(rng)


def _optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def _restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    entries: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        entries.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
