"""Built-in scoring rules: pure functions of one prompt and one response, one per name in `ppo_engine.config.RULES`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import regex
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from ppo_engine.config import RULES, KeywordRule, LengthRule, RegexRule, RepetitionRule, RuleReward, SentimentRule
from ppo_engine.errors import InvalidConfig, RewardFailed
from ppo_engine.rewards.exchange import Exchange, RewardFn, Unscored

ExchangeScore = Callable[[Exchange], float]
"""Scores one exchange; what it raises says why it cannot."""

REGEX_SECONDS = 1.0
"""Longest search in one response: a pattern that backtracks for ever must not hang the run."""


def build_rule(rule: RuleReward) -> RewardFn:
    """Return the reward function of a built-in rule.

    Raises:
        InvalidConfig: no rule of that name, or its parameters are wrong.
    """
    if rule.name not in _SCORES:
        raise InvalidConfig(f"no rule `{rule.name}`; there are {', '.join(_SCORES)}")
    try:
        params = RULES[rule.name].model_validate(rule.params)
    except ValueError as error:
        raise InvalidConfig(f"rule `{rule.name}`: {error}") from error
    score = _SCORES[rule.name](params)

    def reward(exchanges: Sequence[Exchange]) -> list[float | Unscored]:
        return [_attempt(score, exchange) for exchange in exchanges]

    return reward


def _attempt(score: ExchangeScore, exchange: Exchange) -> float | Unscored:
    """A rule that fails on one response still scores the others."""
    try:
        return score(exchange)
    except RewardFailed as error:
        return Unscored(error.message)
    except Exception as error:
        return Unscored(f"it raised {type(error).__name__}: {error}")


def sentiment(params: SentimentRule) -> ExchangeScore:
    """VADER's compound score in [-1, 1]; 0 for a text without a word of its lexicon."""
    analyzer = _analyzer()

    def score(exchange: Exchange) -> float:
        text = exchange.prompt + exchange.response if params.include_prompt else exchange.response
        return float(analyzer.polarity_scores(text)["compound"])

    return score


def length(params: LengthRule) -> ExchangeScore:
    """max(-1, 1 - |words - target| / target): 1 at the target, 0 for nothing at all."""

    def score(exchange: Exchange) -> float:
        return max(-1.0, 1.0 - abs(len(exchange.response.split()) - params.target) / params.target)

    return score


def regex_match(params: RegexRule) -> ExchangeScore:
    """1 where the pattern is found, else 0."""
    try:
        pattern = regex.compile(params.pattern)
    except regex.error as error:
        raise InvalidConfig(f"rule `regex`: bad pattern: {error}") from error

    def score(exchange: Exchange) -> float:
        try:
            return float(pattern.search(exchange.response, timeout=REGEX_SECONDS) is not None)
        except TimeoutError:
            raise RewardFailed(f"the pattern took more than {REGEX_SECONDS:g} s on one response") from None

    return score


def keyword(params: KeywordRule) -> ExchangeScore:
    """The share of the words and phrases that occur, as whole words, without regard to case and spacing."""
    patterns = [re.compile(rf"(?<!\w){re.escape(_plain(word))}(?!\w)") for word in params.words]

    def score(exchange: Exchange) -> float:
        text = _plain(exchange.response)
        return sum(pattern.search(text) is not None for pattern in patterns) / len(patterns)

    return score


def repetition(params: RepetitionRule) -> ExchangeScore:
    """Minus the share of the n-grams that occurred before; 0 for a response shorter than one n-gram."""

    def score(exchange: Exchange) -> float:
        words = exchange.response.split()
        ngrams = [tuple(words[i : i + params.ngram]) for i in range(len(words) - params.ngram + 1)]
        return (len(set(ngrams)) - len(ngrams)) / len(ngrams) if ngrams else 0.0

    return score


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


@cache
def _analyzer() -> SentimentIntensityAnalyzer:
    """Reads its lexicon from disk, so once per process."""
    return SentimentIntensityAnalyzer()


_SCORES: dict[str, Callable[[Any], ExchangeScore]] = {
    "sentiment": sentiment,
    "length": length,
    "regex": regex_match,
    "keyword": keyword,
    "repetition": repetition,
}
