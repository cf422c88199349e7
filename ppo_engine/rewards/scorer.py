"""The reward of a response: a weighted sum of named components, each checked before it is believed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ppo_engine.config import OnError
from ppo_engine.errors import EngineError, RewardFailed
from ppo_engine.ranks import ALONE, Share
from ppo_engine.rewards.answer import FLOAT32_MAX, Answer, failure, read_answer
from ppo_engine.rewards.exchange import AtClose, Exchange, RewardFn, Session, StreamingReward, Unscored

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One term of the reward, and what becomes of responses it cannot score."""

    name: str
    reward: RewardFn | StreamingReward
    weight: float = 1.0
    shadow: bool = False
    on_error: OnError = OnError.FAIL
    max_error_rate: float = 0.0
    dense: bool = False
    """Whether it may give one number per token."""

    def open(self, count: int) -> Session:
        """Begin a batch."""
        if hasattr(self.reward, "open"):
            return self.reward.open(count)
        return AtClose(self.reward, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Raw scores of a batch of B responses. Shadow components are in `components` and in no sum."""

    total: list[float]
    """[B] weighted sum of all components, dense ones with the sum over their tokens; without those that failed."""
    tail: list[float]
    """[B] the part of `total` that is not dense: it is given at the last token."""
    token_rewards: list[list[float] | None] | None = None
    """[B][T] weighted sum of the dense components, None for a response without; None as a whole if none is dense."""
    components: dict[str, list[float | None]]
    """[B] of every component before its weight; None where it failed."""
    dropped: list[bool]
    """[B] True: a component failed whose `on_error` is `drop`; the response must not be trained on."""
    error_fraction: float = 0.0
    """Share of the responses that some component, shadows included, could not score."""

    @property
    def kept(self) -> list[float]:
        """`total` without the dropped responses."""
        return [value for value, dropped in zip(self.total, self.dropped, strict=True) if not dropped]


class Scorer:
    """The reward of a run."""

    def __init__(self, components: Sequence[Component]) -> None:
        self._components = tuple(components)

    @property
    def names(self) -> list[str]:
        """Names of the components, in the order of the spec."""
        return [component.name for component in self._components]

    def open(self, share: Share) -> ScoringSession:
        """Begin to score this rank's share of a batch; its responses come one by one."""
        return ScoringSession(self._components, share)

    def score(self, exchanges: Sequence[Exchange]) -> Scores:
        """Score a batch that is complete.

        Raises:
            RewardFailed: see ScoringSession.close.
        """
        session = self.open(ALONE.share(len(exchanges)))
        for index, exchange in enumerate(exchanges):
            session.add(index, exchange)
        return session.close()


class ScoringSession:
    """The scoring of one batch. Components that wait for others (reward servers) begin while responses still come."""

    def __init__(self, components: Sequence[Component], share: Share) -> None:
        self._components = components
        self._share = share
        self._count = len(share.rows)
        self._sessions = {component.name: component.open(self._count) for component in components}
        self._exchanges: dict[int, Exchange] = {}

    def add(self, index: int, exchange: Exchange) -> None:
        """Take a response of this share that is finished; in any order, each index below its size once."""
        if index in self._exchanges or not 0 <= index < self._count:
            raise ValueError(f"response {index} of {self._count} was added already, or there is no such")
        self._exchanges[index] = exchange
        for session in self._sessions.values():
            session.add(index, exchange)

    def close(self) -> Scores:
        """The scores of the whole batch, of all ranks.

        Raises:
            RewardFailed: a component returned something that is not one value per response, or could not score a
                response and its `on_error` is `fail`, or more of them than its `max_error_rate`; or every response
                was dropped.
        """
        if len(self._exchanges) != self._count:
            raise ValueError(f"{len(self._exchanges)} of {self._count} responses were added")
        exchanges = [self._exchanges[index] for index in range(self._count)]
        # Whoever runs beside the others is asked last.
        order = sorted(self._components, key=lambda component: hasattr(component.reward, "open"))
        try:
            answers = {component.name: self._answer(component, exchanges) for component in order}
        except BaseException:
            self.abandon()
            raise
        whole = {component.name: _whole(answers[component.name], self._share) for component in self._components}
        for component in order:
            _judge(component, whole[component.name])
        return combine(self._components, whole, self._share.count)

    def abandon(self) -> None:
        """Stop what is under way: the scores are not wanted any more."""
        for session in self._sessions.values():
            session.abandon()

    def _answer(self, component: Component, exchanges: Sequence[Exchange]) -> Answer:
        label = f"reward `{component.name}`"
        try:
            returned: Any = self._sessions[component.name].close()
        except RewardFailed as error:
            raise type(error)(f"{label}: {error.message}", suggestion=error.advice) from error
        except (EngineError, MemoryError, torch.OutOfMemoryError):
            raise  # not the component's own fault
        except Exception as error:
            log.warning("%s raised", label, exc_info=True)
            returned = [Unscored(f"it raised {type(error).__name__}: {error}")] * len(exchanges)
        answer = read_answer(label, returned, [e.response_tokens for e in exchanges], dense=component.dense)
        if component.on_error is OnError.FAIL and not component.shadow:
            _judge(component, answer)  # at once: nobody need wait for slower components, or for other ranks
        return answer


def _whole(own: Answer, share: Share) -> Answer:
    """The answer of all ranks from that of one."""
    if share.ranks.count == 1:
        return own
    rows = [own.row(index) for index in range(len(own.values))]
    return Answer.of_rows(share.values(rows))


def _judge(component: Component, answer: Answer) -> None:
    """Whether the run can go on with the failures of a component."""
    failed, count = answer.failures, len(answer.values)
    if not failed:
        return
    label = f"reward `{component.name}`"
    index, reason = next(iter(failed.items()))
    first = f"response {index} of {count}: {reason.reason}"
    share = f"{label} could not score {len(failed)} of {count} responses"
    if component.shadow:
        log.warning("%s, as a shadow; first %s", share, first)
    elif component.on_error is OnError.FAIL:
        raise failure(f"{label} could not score {first}", reason)
    elif len(failed) > component.max_error_rate * count:
        raise failure(f"{share}, more than max_error_rate {component.max_error_rate:g}; first {first}", reason)
    else:
        log.warning("%s; first %s", share, first)


def combine(components: Sequence[Component], answers: dict[str, Answer], count: int) -> Scores:
    """Weighted sums of checked answers.

    Raises:
        RewardFailed: a sum is beyond float32, or every response is dropped.
    """
    trained = [component for component in components if not component.shadow]
    dropped = [
        any(component.on_error is OnError.DROP and index in answers[component.name].failures for component in trained)
        for index in range(count)
    ]
    if count and all(dropped):
        raise RewardFailed("every response of the batch was dropped: no reward could score it")
    tail = [_sum(trained, answers, index, dense=False) for index in range(count)]
    total = [tail[index] + _sum(trained, answers, index, dense=True) for index in range(count)]
    _check_finite("the weighted sum of the rewards", total)
    dense = [component for component in trained if answers[component.name].tokens is not None]
    failed = {index for answer in answers.values() for index in answer.failures}
    return Scores(
        total=total,
        tail=tail,
        token_rewards=[_tokens(dense, answers, index) for index in range(count)] if dense else None,
        components={component.name: answers[component.name].values for component in components},
        dropped=dropped,
        error_fraction=len(failed) / count if count else 0.0,
    )


def _sum(components: Sequence[Component], answers: dict[str, Answer], index: int, *, dense: bool) -> float:
    return sum(
        component.weight * value
        for component in components
        if (answers[component.name].tokens is not None) is dense
        and (value := answers[component.name].values[index]) is not None
    )


def _tokens(dense: Sequence[Component], answers: dict[str, Answer], index: int) -> list[float] | None:
    """Weighted sum over the dense components that scored this response, token by token."""
    rows = [
        [component.weight * value for value in row]
        for component in dense
        if (row := (answers[component.name].tokens or [])[index]) is not None
    ]
    return [sum(column) for column in zip(*rows, strict=True)] if rows else None


def _check_finite(label: str, values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        if not abs(value) <= FLOAT32_MAX:  # false for NaN too
            raise RewardFailed(f"{label} is {value} at index {index} of {len(values)}; scores must be finite")
