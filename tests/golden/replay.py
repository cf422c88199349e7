"""The recorded TRL cases, in the form that `ppo_engine.program.replay` reads."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import ppo_engine.program.replay
from ppo_engine.models.policy import LanguageModel
from ppo_engine.trainer import Trainer

DATA = Path(__file__).parent / "data" / "steps"
PAD_ID = 60


@cache
def cases() -> list[dict[str, Any]]:
    recorded = json.loads((DATA / "cases.json").read_text())["cases"]
    return [case | _models(case["base"]) | {"pad_token_id": PAD_ID} for case in recorded]


def _models(base: str) -> dict[str, Any]:
    roles = {"policy": "policy", "reference": "ref"}
    return {name: {"config": f"{base}_config", "weights": f"{base}_{role}.safetensors"} for name, role in roles.items()}


def make_trainer(case: dict[str, Any], **ppo: Any) -> Trainer:
    return ppo_engine.program.replay.load_trainer(case, DATA, **ppo)


def replay_step(trainer: Trainer, step: dict[str, Any]) -> dict[str, float]:
    return ppo_engine.program.replay.replay_step(trainer, step, pad_id=PAD_ID)


def load(base: str) -> LanguageModel:
    """The recorded policy, without its value head."""
    return make_trainer(next(case for case in cases() if case["base"] == base)).models.policy.language
