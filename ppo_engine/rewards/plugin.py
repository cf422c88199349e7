"""Reward functions that the operator installed: entry points of the group `ppo_engine.rewards`.

An entry point is a factory. It is called once with the component's `params` as keyword arguments and returns a function
of exchanges (`ppo_engine.rewards.RewardFn`).
"""

from __future__ import annotations

from importlib.metadata import entry_points

from ppo_engine.config import PluginReward
from ppo_engine.errors import InvalidConfig
from ppo_engine.rewards.exchange import RewardFn

GROUP = "ppo_engine.rewards"


def load_plugin(spec: PluginReward) -> RewardFn:
    """Import the plugin and make its reward function.

    Raises:
        InvalidConfig: nothing of that name is installed, it cannot be imported, or it does not take the parameters.
    """
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if spec.name not in installed:
        there = ", ".join(sorted(installed)) or "none"
        raise InvalidConfig(f"no reward plugin `{spec.name}` is installed; there are: {there}")
    try:
        reward = installed[spec.name].load()(**spec.params)
    except Exception as error:
        raise InvalidConfig(f"reward plugin `{spec.name}`: {type(error).__name__}: {error}") from error
    if not callable(reward):
        raise InvalidConfig(f"reward plugin `{spec.name}` made a {type(reward).__name__} instead of a function")
    return reward  # type: ignore[no-any-return]
