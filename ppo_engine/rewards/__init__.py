"""Rewards: components of the spec become one scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ppo_engine.config import RewardComponent
from ppo_engine.egress import NO_HOST_ALLOWED, Egress
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards.exchange import Exchange, RewardFn, StreamingReward
from ppo_engine.rewards.http import RewardServer
from ppo_engine.rewards.model import load_reward_model
from ppo_engine.rewards.plugin import load_plugin
from ppo_engine.rewards.rules import build_rule
from ppo_engine.rewards.scorer import Component, Scorer, Scores, ScoringSession

__all__ = [
    "Component",
    "Exchange",
    "RewardFn",
    "Scorer",
    "Scores",
    "ScoringSession",
    "build_component",
    "build_scorer",
]


def build_scorer(
    components: Sequence[RewardComponent],
    *,
    roots: Sequence[Path],
    device: torch.device,
    egress: Egress = NO_HOST_ALLOWED,
) -> Scorer:
    """Build the rules and load the reward models and plugins of a spec.

    Args:
        roots: where paths of models resolve.
        egress: which reward servers may be called beside public ones.

    Raises:
        InvalidConfig: an unknown rule or plugin, or bad parameters.
        ModelUnavailable: a reward model that cannot be loaded.
        RewardFailed: a reward model that does not give one score per text.
        RewardHostForbidden: a reward server that may not be called.
        RewardUnavailable: a reward server whose name cannot be looked up.
    """
    return Scorer([build_component(item, roots=roots, device=device, egress=egress) for item in components])


def build_component(
    item: RewardComponent,
    *,
    roots: Sequence[Path],
    device: torch.device,
    egress: Egress = NO_HOST_ALLOWED,
) -> Component:
    """Build one component; raises what `build_scorer` does."""
    return Component(
        name=item.name,
        reward=_build(item, roots, device, egress),
        weight=item.weight,
        shadow=item.shadow,
        on_error=item.on_error,
        max_error_rate=item.max_error_rate,
        dense=item.plugin is not None,
    )


def _build(
    component: RewardComponent, roots: Sequence[Path], device: torch.device, egress: Egress
) -> RewardFn | StreamingReward:
    if component.rule is not None:
        return build_rule(component.rule)
    if component.model is not None:
        return load_reward_model(component.model, roots, device)
    if component.plugin is not None:
        return load_plugin(component.plugin)
    if component.http is None:
        raise InvalidConfig(f"reward `{component.name}` has no kind")
    try:
        return RewardServer(component.http, egress)
    except ValueError as error:
        raise InvalidConfig(f"reward `{component.name}`: {error}") from error
