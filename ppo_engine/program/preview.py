"""Rewards tried on given texts before any training: values, how they lie, and what speaks against them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from ppo_engine import runtime
from ppo_engine.config import ResourcesConfig, RewardComponent
from ppo_engine.egress import Egress
from ppo_engine.errands import ComponentPreview, Finding, PreviewRequest, RewardPreview, Spread, TextScore
from ppo_engine.rewards import Exchange
from ppo_engine.rewards.trial import Panel, Trial
from ppo_engine.spread import spread_of

_SATURATED, _ZERO_SPREAD, _CORRELATED = 0.5, 0.5, 0.8
_ENOUGH = 8
"""Values from which a share or a correlation says something."""
_NOISE = 1e-6
"""Relative to the largest value: what two passes of a model may differ by."""


def preview_reward(
    asked: PreviewRequest, *, roots: Sequence[Path], egress: Egress, threads: int | None
) -> RewardPreview:
    """Score every text with every component, twice."""
    start = perf_counter()
    # Without a tokenizer, a dense reward is asked for a number per word.
    exchanges = [Exchange(text.prompt, text.response, text.record, len(text.response.split())) for text in asked.texts]
    device = runtime.start(ResourcesConfig(), threads=threads).device
    panel = Panel(asked.rewards, roots=roots, device=device, egress=egress)
    trials = panel.score(exchanges)
    again = panel.score(exchanges)
    previews = [_preview(*three, exchanges) for three in zip(asked.rewards, trials, again, strict=True)]
    totals = panel.sums(trials)
    total = _spread(totals, exchanges)
    return RewardPreview(
        texts=len(exchanges),
        groups=sum(count > 1 for count in Counter(map(_group, exchanges)).values()),
        total=total,
        components=previews,
        scores=[
            TextScore(
                index=index,
                total=totals[index],
                components=panel.values_at(trials, index),
                errors=panel.errors_at(trials, index),
            )
            for index in range(len(exchanges))
        ],
        findings=[*(found for preview in previews for found in _of_component(preview)), *_of_spread(None, total)],
        seconds=perf_counter() - start,
    )


def _preview(item: RewardComponent, first: Trial, again: Trial, exchanges: Sequence[Exchange]) -> ComponentPreview:
    scored = sum(value is not None for value in first.values)
    return ComponentPreview(
        name=item.name,
        weight=item.weight,
        shadow=item.shadow,
        scored=scored,
        failed=len(exchanges) - scored,
        error=first.error,
        spread=_spread(first.values, exchanges),
        repeat_difference=_difference(first, again),
        seconds=first.seconds,
    )


def _difference(first: Trial, again: Trial) -> float | None:
    pairs = [(a, b) for a, b in zip(first.values, again.values, strict=True) if a is not None and b is not None]
    return max((abs(a - b) for a, b in pairs), default=None)


def _spread(values: Sequence[float | None], exchanges: Sequence[Exchange]) -> Spread | None:
    scored = [(value, exchange) for value, exchange in zip(values, exchanges, strict=True) if value is not None]
    return spread_of(
        [value for value, _ in scored],
        [_group(exchange) for _, exchange in scored],
        [len(exchange.response) for _, exchange in scored],
    )


def _group(exchange: Exchange) -> str:
    """What makes two texts responses to the same prompt."""
    return json.dumps([exchange.prompt, exchange.record], sort_keys=True)


def _of_component(preview: ComponentPreview) -> Iterator[Finding]:
    name, spread = preview.name, preview.spread
    if preview.error is not None:
        yield Finding(code="error", component=name, message=f"it scored nothing: {preview.error}")
    elif preview.failed:
        count = preview.scored + preview.failed
        message = f"it could not score {preview.failed} of {count} texts; `scores` has the reasons"
        yield Finding(code="failures", component=name, message=message)
    if spread is not None and preview.repeat_difference:
        size = max(abs(spread.minimum), abs(spread.maximum))
        if preview.repeat_difference > _NOISE * size:
            message = f"scored again, a text got a value {preview.repeat_difference:.3g} away: the reward is noisy"
            yield Finding(code="not_repeatable", component=name, message=message)
    yield from _of_spread(name, spread)


def _of_spread(name: str | None, spread: Spread | None) -> Iterator[Finding]:
    """What speaks against a reward that lies so."""
    if spread is None or spread.count < 2:
        return
    if spread.minimum == spread.maximum:
        message = f"every text got {spread.minimum:g}: there is nothing to learn from"
        yield Finding(code="constant", component=name, message=message)
        return
    ends = {spread.minimum: spread.share_at_minimum, spread.maximum: spread.share_at_maximum}
    for end, share in ends.items():
        if spread.count >= _ENOUGH and share > _SATURATED:
            message = f"{share:.0%} of the texts got {end:g}, an end of the range"
            yield Finding(code="saturated", component=name, message=message)
    if spread.zero_spread_share is not None and spread.zero_spread_share > _ZERO_SPREAD:
        message = f"for {spread.zero_spread_share:.0%} of the prompts all responses got the same value"
        yield Finding(code="zero_spread", component=name, message=message)
    r = spread.length_correlation
    if spread.count >= _ENOUGH and r is not None and abs(r) > _CORRELATED:
        wanted = "longer" if r > 0 else "shorter"
        message = f"it follows the length (r = {r:.2f}): the policy may only learn to write {wanted} responses"
        yield Finding(code="length", component=name, message=message)
