"""The library of built-in rules: one scoring function per name in `ppo_engine.config.RULES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ppo_engine.config import RULES, RuleReward
from ppo_engine.errors import InvalidConfig
from ppo_engine.patterns import PatternTimeout
from ppo_engine.rewards.answer_rules import exact, numeric
from ppo_engine.rewards.exchange import CannotScore, Exchange, ExchangeScore, RewardFn, Unscored
from ppo_engine.rewards.json_rule import json_schema
from ppo_engine.rewards.reasoning import reasoning_gym
from ppo_engine.rewards.text_rules import keyword, length, regex_match, repetition, sentiment, toxicity


def build_rule(rule: RuleReward) -> RewardFn:
    """Return the reward function of a built-in rule.

    Raises:
        InvalidConfig: no rule of that name, or its parameters are wrong.
    """
    if rule.name not in SCORES:
        raise InvalidConfig(f"no rule `{rule.name}`; there are {', '.join(SCORES)}")
    try:
        score = SCORES[rule.name](RULES[rule.name].model_validate(rule.params))
    except ValueError as error:
        raise InvalidConfig(f"rule `{rule.name}`: {error}") from error

    def reward(exchanges: Sequence[Exchange]) -> list[float | Unscored]:
        return [_attempt(score, exchange) for exchange in exchanges]

    return reward


def _attempt(score: ExchangeScore, exchange: Exchange) -> float | Unscored:
    """A rule that fails on one response still scores the others."""
    try:
        return score(exchange)
    except (CannotScore, PatternTimeout) as error:
        return Unscored(str(error))
    except Exception as error:
        return Unscored(f"it raised {type(error).__name__}: {error}")


SCORES: dict[str, Callable[[Any], ExchangeScore]] = {
    "sentiment": sentiment,
    "length": length,
    "regex": regex_match,
    "keyword": keyword,
    "repetition": repetition,
    "exact": exact,
    "numeric": numeric,
    "json_schema": json_schema,
    "toxicity": toxicity,
    "reasoning_gym": reasoning_gym,
}
"""From the parameters of each rule to its scoring function; ValueError for parameters that cannot work."""
