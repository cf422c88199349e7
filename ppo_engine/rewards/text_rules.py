"""Rules about the text of a response: tone, length, words, repetition."""

from __future__ import annotations

import re
import string
from functools import cache
from importlib.resources import files

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from ppo_engine.config import KeywordRule, LengthRule, RegexRule, RepetitionRule, SentimentRule, ToxicityRule
from ppo_engine.patterns import compile_pattern, found
from ppo_engine.rewards.exchange import Exchange, ExchangeScore

_EDGES = string.punctuation + "\u2018\u2019\u201c\u201d\xab\xbb\u2026"
"""Punctuation that may stand around a word: ASCII, quotation marks and the ellipsis."""
_GAP = re.compile(r"[\s/\-\u2013\u2014]+")
"""Space, slashes, hyphens and dashes."""
_POSSESSIVE = re.compile(r"['\u2019]s$")


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
    pattern = compile_pattern(params.pattern)

    def score(exchange: Exchange) -> float:
        return float(found(pattern, exchange.response))

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


def toxicity(params: ToxicityRule) -> ExchangeScore:
    """Minus the share of the words that are listed, without regard to case; 0 for a response without words.

    Hyphenated words count as their parts. Nothing but the words themselves is looked at: neither who is addressed
    nor whether they are quoted. A classifier (`model`) sees more.
    """
    listed = offensive_words() | {word.casefold() for word in params.extra_words}

    def score(exchange: Exchange) -> float:
        words = [word for word in map(_bare, _GAP.split(exchange.response)) if word]
        return -sum(word in listed for word in words) / len(words) if words else 0.0

    return score


@cache
def offensive_words() -> frozenset[str]:
    """The list that comes with this package."""
    lines = files("ppo_engine.rewards").joinpath("offensive_words.txt").read_text("utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def _bare(word: str) -> str:
    """Without the punctuation around it, the possessive and case."""
    return _POSSESSIVE.sub("", word.strip(_EDGES).casefold())


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


@cache
def _analyzer() -> SentimentIntensityAnalyzer:
    """Reads its lexicon from disk, so once per process."""
    return SentimentIntensityAnalyzer()
