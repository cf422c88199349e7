"""What a watched job says, whether it came by a stream or by polling."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from jobs.views import JobEventView, JobView, MetricsView
from ppo_client.sse import ServerEvent


class _Update(BaseModel):
    model_config = ConfigDict(frozen=True)

    cursor: str
    """The place behind this update: give it to `watch` to go on from there."""


class Snapshot(_Update):
    """The job as it is now."""

    job: JobView


class Happened(_Update):
    """One line of the job's journal."""

    event: JobEventView


class Step(_Update):
    """The scalars of one step, by metric key."""

    step: int
    time: datetime
    metrics: dict[str, float]


class Gap(_Update):
    """Of these steps only some follow: the reader was very far behind. All of them are in `client.metrics`."""

    from_step: int
    to_step: int


class End(_Update):
    """The job as it ended: always the last update."""

    job: JobView


Update = Snapshot | Happened | Step | Gap | End


def from_stream(events: Iterable[ServerEvent]) -> Iterator[Update]:
    """Updates of an event stream; kinds of a newer service are left out."""
    for event in events:
        cursor = event.id or ""
        match event.event:
            case "job":
                yield Snapshot(cursor=cursor, job=JobView.model_validate_json(event.data))
            case "event":
                yield Happened(cursor=cursor, event=JobEventView.model_validate_json(event.data))
            case "step":
                yield Step.model_validate({**json.loads(event.data), "cursor": cursor})
            case "gap":
                yield Gap.model_validate({**json.loads(event.data), "cursor": cursor})
            case "end":
                yield End(cursor=cursor, job=JobView.model_validate_json(event.data))


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a job's stream, as the service writes it: `seq`, or `seq.step` behind the first step."""

    seq: int = 0
    step: int | None = None

    @classmethod
    def parse(cls, cursor: str) -> Place:
        """The place that a cursor names."""
        seq, _, step = cursor.partition(".")
        return cls(int(seq or 0), int(step) if step else None)

    def __str__(self) -> str:
        return str(self.seq) if self.step is None else f"{self.seq}.{self.step}"

    @property
    def next_step(self) -> int:
        """The first step that has not been seen; 0 is the evaluation before training."""
        return 0 if self.step is None else self.step + 1

    def past_event(self, event: JobEventView) -> Place:
        """The place behind an event. Behind a rollback, steps that were seen come again."""
        return Place(event.seq, None if self.step is None else event.place_after(self.step))

    def past_step(self, step: int) -> Place:
        """The place behind a step."""
        return Place(self.seq, max(step, self.next_step - 1))


def from_answers(cursor: str, job: JobView, events: Iterable[JobEventView], metrics: MetricsView) -> Iterator[Update]:
    """Updates of one poll: `job`, then what was read after it from behind `cursor`, oldest first.

    The end comes only with a poll that brought nothing else: a long journal takes several.
    """
    place = Place.parse(cursor)
    items: list[JobEventView | Step] = [*events, *_steps(metrics)]
    items.sort(key=lambda item: item.time)
    yield Snapshot(cursor=cursor, job=job)
    if metrics.downsampled:
        yield Gap(cursor=cursor, from_step=metrics.steps[0], to_step=metrics.steps[-1])
    for item in items:
        if isinstance(item, JobEventView):
            place = place.past_event(item)
            yield Happened(cursor=str(place), event=item)
        else:
            place = place.past_step(item.step)
            yield item.model_copy(update={"cursor": str(place)})
    if job.done and not items:
        yield End(cursor=cursor, job=job)


def _steps(metrics: MetricsView) -> Iterator[Step]:
    for index, (step, time) in enumerate(zip(metrics.steps, metrics.times, strict=True)):
        values = {key: column[index] for key, column in metrics.series.items()}
        yield Step(cursor="", step=step, time=time, metrics={key: v for key, v in values.items() if v is not None})
