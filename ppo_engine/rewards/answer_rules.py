"""Rules that compare a response with the answer in the prompt's JSON line."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from ppo_engine.config import ExactRule, NumericRule
from ppo_engine.patterns import compile_pattern, matches
from ppo_engine.rewards.exchange import CannotScore, Exchange, ExchangeScore

_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-+\u2212])?[$\u20ac\xa3]?"
    rf"(?<![A-Za-z_\d])(?P<number>{_DIGITS})(?P<exponent>[eE][-+]?\d+)?(?:\s?/\s?(?P<below>{_DIGITS}))?"
)
"""A sign counts where no term stands before it: in `-5` and `x = -5`, but not in `10-5`. U+2212 is the minus sign."""
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BOXED = "\\boxed{"


def exact(params: ExactRule) -> ExchangeScore:
    """1 where response and answer are the same but for space (and case); an answer may be a list of right ones."""
    pattern = None if params.pattern is None else compile_pattern(params.pattern)

    def plain(text: str) -> str:
        spaced = " ".join(text.split())
        return spaced.casefold() if params.ignore_case else spaced

    def score(exchange: Exchange) -> float:
        answers = {plain(text) for text in _texts(answer_of(exchange, params.answer_field))}
        text: str | None = exchange.response
        if pattern is not None:
            text = None
            for match in matches(pattern, exchange.response):
                text = match.group(1) if pattern.groups else match.group()
        return float(text is not None and plain(text) in answers)

    return score


def numeric(params: NumericRule) -> ExchangeScore:
    r"""1 where |found - answer| <= tolerance * max(1, |answer|).

    What is found is the last number in the last \boxed{} of the response, or without one in the response. Thousands
    commas, decimals, exponents and fractions are read; currencies, per cent signs and units are passed over, so that
    `50%` is 50.
    """

    def score(exchange: Exchange) -> float:
        wanted = _wanted(answer_of(exchange, params.answer_field))
        found = last_number(_boxed(exchange.response) or exchange.response)
        return float(found is not None and abs(found - wanted) <= params.tolerance * max(1.0, abs(wanted)))

    return score


def answer_of(exchange: Exchange, field: str) -> Any:
    """The answer in the prompt's JSON line; raises CannotScore where there is none."""
    answer = exchange.record.get(field)
    if answer is None:
        raise CannotScore(f"the prompt's line has no field `{field}`")
    return answer


def last_number(text: str) -> float | None:
    """The last number in a text; None where there is none, infinite where it is too large."""
    plain = _FRACTION.sub(lambda fraction: f"{fraction[1].strip()}/{fraction[2].strip()}", text)
    found = deque(_NUMBER.finditer(plain), maxlen=1)
    return _value(found[0]) if found else None


def _value(match: re.Match[str]) -> float:
    value = float(match["number"].replace(",", "") + (match["exponent"] or ""))
    if match["below"] is not None:
        below = float(match["below"].replace(",", ""))
        value = value / below if below else float("inf")
    return -value if match["sign"] in ("-", "\u2212") else value


def _boxed(text: str) -> str | None:
    r"""What is in the last `\boxed{…}`, whose braces may be nested."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth = 1
    for end in range(start + len(_BOXED), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len(_BOXED) : end]
    return text[start + len(_BOXED) :]


def _wanted(answer: Any) -> float:
    if isinstance(answer, str):
        number = last_number(answer)
        if number is None:
            raise CannotScore(f"there is no number in the answer `{answer[:40]}`")
        return number
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise CannotScore(f"the answer is a {type(answer).__name__} instead of a number")
    return float(answer)


def _texts(answer: Any) -> list[str]:
    """One answer, or several of which each is right."""
    answers = answer if isinstance(answer, list) else [answer]
    for item in answers:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise CannotScore(f"the answer is a {type(item).__name__} instead of a text")
    return [str(item) for item in answers]
