"""What a watched job says, whether it came by a stream or by polling."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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


class End(_Update):
    """The job as it ended: always the last update."""

    job: JobView


Update = Snapshot | Happened | Step | End


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
            case "end":
                yield End(cursor=cursor, job=JobView.model_validate_json(event.data))


def parse_cursor(cursor: str) -> tuple[int, int]:
    """Last event and last step of a place."""
    seq, _, step = cursor.partition(".")
    return int(seq or 0), int(step or 0)


def from_answers(cursor: str, job: JobView, events: Iterable[JobEventView], metrics: MetricsView) -> Iterator[Update]:
    """Updates of one poll: `job`, then what was read after it from behind `cursor`, oldest first.

    The end comes only with a poll that brought nothing else: a long journal takes several.
    """
    seq, step = parse_cursor(cursor)
    items: list[JobEventView | Step] = [*events, *_steps(metrics)]
    items.sort(key=lambda item: item.time)
    yield Snapshot(cursor=cursor, job=job)
    for item in items:
        if isinstance(item, JobEventView):
            seq = item.seq
            yield Happened(cursor=f"{seq}.{step}", event=item)
        else:
            step = max(step, item.step)
            yield item.model_copy(update={"cursor": f"{seq}.{step}"})
    if job.done and not items:
        yield End(cursor=cursor, job=job)


def _steps(metrics: MetricsView) -> Iterator[Step]:
    for index, (step, time) in enumerate(zip(metrics.steps, metrics.times, strict=True)):
        values = {key: column[index] for key, column in metrics.series.items()}
        yield Step(cursor="", step=step, time=time, metrics={key: v for key, v in values.items() if v is not None})
