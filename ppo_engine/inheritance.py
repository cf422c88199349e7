"""What a run may take over from the checkpoint of another run that it was forked from. Torch-free.

Such a checkpoint lies among the run's own, under attempt 0. The other run's spec may have differed, so a part of the
state that a difference makes void begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

ATTEMPT = 0
"""Of the folder of an inherited checkpoint; a run's own attempts count from 1."""


class Part(StrEnum):
    """A part of a checkpoint's state besides the policy's weights, which are always taken over."""

    TRAINING = "training"
    """Step, optimizer and all other parts: without it the run begins at step 0 with the weights alone."""
    CRITIC = "critic"
    """Value head, and the critic's own trunk if it has one."""
    KL = "kl"
    """The KL coefficient that the controller had reached."""
    SCORES = "scores"
    """Running statistics that scale scores."""
    PROMPTS = "prompts"
    """Where in the prompts the run was."""
    TEXTS = "texts"
    """Where in the texts of the ptx loss it was."""
    RANDOM = "random"
    """Random states."""
    OVERSIGHT = "oversight"
    """What guards, early stopping and the best checkpoint remember."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """A checkpoint of another run, and what of its state begins anew."""

    folder: Path
    anew: frozenset[Part]


FIXED = ("policy", "adapter", "lora", "trainable_layers")
"""Fields of `model` that decide what the weights are: a fork cannot change them."""
_HARMLESS = (*FIXED, "gradient_checkpointing")
_DEPENDS: dict[Part, tuple[tuple[str, ...], ...]] = {
    Part.KL: (("kl", "init_kl_coef"), ("kl", "adaptive"), ("kl", "fixed")),
    Part.SCORES: (("rewards",), ("ppo", "score_scaling"), ("ppo", "score_clip")),
    Part.PROMPTS: (("prompts",), ("seed",)),
    Part.TEXTS: (("ptx", "texts"), ("seed",)),
    Part.RANDOM: (("seed",),),
    Part.OVERSIGHT: (("guards",), ("early_stop",), ("evaluation",), ("checkpoint", "best_metric")),
}


def is_inherited(folder: str | Path) -> bool:
    """Whether a checkpoint folder holds what was taken over from another run."""
    return Path(folder).name.endswith(f"-{ATTEMPT}")


def anew(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[Part]:
    """The parts that begin anew when the spec `before` becomes `after`, both as complete documents."""
    models = before["model"], after["model"]
    changed = {name for name in models[0].keys() | models[1].keys() if models[0].get(name) != models[1].get(name)}
    if changed - set(_HARMLESS):
        return frozenset(Part) - ({Part.CRITIC} if "value" not in changed else set())
    return frozenset(
        part for part, places in _DEPENDS.items() if any(_at(before, place) != _at(after, place) for place in places)
    )


def _at(document: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    found: Any = document
    for name in place:
        found = (found or {}).get(name)
    return found
