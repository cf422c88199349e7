"""Rewards: components of the spec become one scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ppo_engine.config import RewardComponent
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards.exchange import Exchange, RewardFn
from ppo_engine.rewards.model import load_reward_model
from ppo_engine.rewards.rules import build_rule
from ppo_engine.rewards.scorer import Component, Scorer, Scores, ScoringSession

__all__ = ["Component", "Exchange", "RewardFn", "Scorer", "Scores", "ScoringSession", "build_scorer"]


def build_scorer(components: Sequence[RewardComponent], *, roots: Sequence[Path], device: torch.device) -> Scorer:
    """Build the rules and load the reward models of a spec; paths resolve under `roots`.

    Raises:
        InvalidConfig: an unknown rule or bad parameters.
        ModelUnavailable: a reward model that cannot be loaded.
        RewardFailed: a reward model that does not give one score per text.
    """
    return Scorer(
        [
            Component(
                name=item.name,
                reward=_build(item, roots, device),
                weight=item.weight,
                shadow=item.shadow,
                on_error=item.on_error,
                max_error_rate=item.max_error_rate,
                dense=item.plugin is not None,
            )
            for item in components
        ]
    )


def _build(component: RewardComponent, roots: Sequence[Path], device: torch.device) -> RewardFn:
    if component.rule is not None:
        return build_rule(component.rule)
    if component.model is not None:
        return load_reward_model(component.model, roots, device)
    raise InvalidConfig(f"reward `{component.name}` is neither a rule nor a model")
