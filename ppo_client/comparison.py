"""Before and after: responses of the first and the last steps to the same prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.views import SampleView

WINDOW_STEPS = 5
"""How many steps count as the first and as the last."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt's responses; None where that end of the run has none."""

    prompt: str
    before: SampleView | None
    after: SampleView | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs, and what their two ends are called."""

    pairs: list[Pair]
    before: str = f"First {WINDOW_STEPS} steps"
    after: str = f"Last {WINDOW_STEPS} steps"


def window(steps: Sequence[int], *, last: bool) -> list[int]:
    """The first or the last steps, never the same step in both."""
    size = min(WINDOW_STEPS, len(steps) // 2)
    if size == 0:
        return list(steps) if last else []
    return list(steps[-size:] if last else steps[:size])


def pair(first: Iterable[SampleView], last: Iterable[SampleView], limit: int = 8) -> list[Pair]:
    """Pairs with both ends first, each end the median of its prompt's scores: neither the best nor the worst.

    Prompts keep their order of appearance.
    """
    before, after = _by_prompt(first), _by_prompt(last)
    prompts = dict.fromkeys([*before, *after])
    pairs = [Pair(prompt, _median(before.get(prompt)), _median(after.get(prompt))) for prompt in prompts]
    pairs.sort(key=lambda found: found.before is None or found.after is None)
    return pairs[:limit]


def _by_prompt(samples: Iterable[SampleView]) -> dict[str, list[SampleView]]:
    groups = defaultdict(list)
    for sample in samples:
        groups[sample.prompt].append(sample)
    return groups


def _median(samples: list[SampleView] | None) -> SampleView | None:
    if not samples:
        return None
    return sorted(samples, key=lambda sample: sample.score)[len(samples) // 2]
