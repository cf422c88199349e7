"""A job as a stream, the same for SSE and WatchJob: a snapshot, what happens, the end.

Two counters make a place in the stream: the `seq` of the job's events, and its last step. Steps come from the metrics
rows, one per step even where a worker repeats it after a crash; behind an event that says that the run was rolled back,
the steps that it reports anew are shown again. The database is read from the reader's own place when the job has moved
(`api.hub`) and nothing is held between reads, so a stream can go on after a restart of any process, and a slow reader
costs nothing: one that is very far behind is told so and given some of the steps it missed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from api.hub import Hub, Pace, Topic
from api.threads import in_thread
from jobs import service
from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import InvalidArgument
from jobs.views import JobEventView, JobView, MetricsView

_EVENTS_PER_READ = 1000
_STEPS_PER_READ = 1000
_CURSOR = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a job's stream: everything up to here has been seen."""

    seq: int = 0
    step: int | None = None
    """None: no step yet. 0 is the evaluation before training."""

    def __str__(self) -> str:
        return str(self.seq) if self.step is None else f"{self.seq}.{self.step}"

    @property
    def next_step(self) -> int:
        """The first step that has not been seen."""
        return 0 if self.step is None else self.step + 1

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """`seq` or `seq.step`; raises InvalidArgument on anything else."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidArgument("a place in a stream is written `seq.step`, for example `12.340`")
        return cls(int(match[1]), None if match[2] is None else int(match[2]))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job as it is: the first message of every stream."""

    job: JobView


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of the job's journal."""

    event: JobEventView


@dataclass(frozen=True, slots=True)
class Step:
    """The scalars of one step."""

    step: int
    time: datetime
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Gap:
    """The reader was so far behind that of these steps only some follow; all of them are in the job's metrics."""

    from_step: int
    to_step: int
    time: datetime
    """Of the first step that follows."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened, and the stream is alive."""


@dataclass(frozen=True, slots=True)
class End:
    """The job as it ended: the last message."""

    job: JobView


Update = Snapshot | Happened | Step | Gap | Heartbeat | End


@dataclass(frozen=True, slots=True)
class Source:
    """One job of one caller, and when to give up."""

    db: Database
    principal: Principal
    job_id: str
    stopping: asyncio.Event


@dataclass(frozen=True, slots=True)
class Reading:
    """The job, and what was behind a place."""

    job: JobView
    fresh: list[Happened | Gap | Step]
    more: bool
    """Whether there is more behind it already."""


async def watch(source: Source, cursor: Cursor, pace: Pace, hub: Hub) -> AsyncGenerator[tuple[Update, Cursor], None]:
    """Updates behind `cursor`, each with the place it leads to; ends after End.

    Raises:
        JobNotFound: before the first update.
        Unavailable: the server stops or the database is away; go on later from the last cursor.
    """
    reading = await in_thread(_read, source, cursor)
    yield Snapshot(reading.job), cursor
    version, spoke = None, time.monotonic()
    with hub.follow(source.job_id, source.db, source.stopping, pace) as topic:
        while True:
            for update in reading.fresh:
                cursor = _past(cursor, update)
                yield update, cursor
            if reading.fresh:
                spoke = time.monotonic()
            # A job that is done is read once more at once: what was left of a long journal comes before the end.
            elif reading.job.done:
                yield End(reading.job), cursor
                return
            if not reading.job.done and not reading.more:
                while (moved := await topic.moved(version, spoke + pace.heartbeat_seconds - time.monotonic())) is None:
                    yield Heartbeat(), cursor
                    spoke = time.monotonic()
                version = moved
            reading = await _read_shared(topic, source, cursor)


async def _read_shared(topic: Topic, source: Source, cursor: Cursor) -> Reading:
    place = (source.principal.owner_id, cursor)
    reading: Reading = await topic.shared(place, lambda: in_thread(_read, source, cursor))
    return reading


def _read(source: Source, cursor: Cursor) -> Reading:
    """The job, then what is behind the cursor: read in this order, nothing of a job seen as done can be missed."""
    whose = (source.db, source.principal, source.job_id)
    job = service.get(*whose)
    events = service.events(*whose, after_seq=cursor.seq, limit=_EVENTS_PER_READ)
    # Where the run was rolled back, from the steps that are void: those behind them would hide the repeated ones.
    seen = cursor
    for event in events:
        seen = _past(seen, Happened(event))
    metrics = service.metrics(*whose, from_step=seen.next_step, max_points=_STEPS_PER_READ)
    fresh: list[Happened | Gap | Step] = [*map(Happened, events), *_steps(metrics)]
    if metrics.downsampled:
        fresh.append(Gap(seen.next_step, metrics.steps[-1], metrics.times[0]))
    return Reading(job, sorted(fresh, key=_when), more=len(events) == _EVENTS_PER_READ)


def _steps(metrics: MetricsView) -> Iterator[Step]:
    for index, (step, at) in enumerate(zip(metrics.steps, metrics.times, strict=True)):
        values = {key: column[index] for key, column in metrics.series.items()}
        yield Step(step, at, {key: value for key, value in values.items() if value is not None})


def _when(update: Happened | Gap | Step) -> tuple[datetime, bool]:
    """A gap is told before the first of its steps."""
    return (update.event.time, True) if isinstance(update, Happened) else (update.time, not isinstance(update, Gap))


def _past(cursor: Cursor, update: Happened | Gap | Step) -> Cursor:
    if isinstance(update, Gap):
        return cursor
    if isinstance(update, Happened):
        step = None if cursor.step is None else update.event.place_after(cursor.step)
        return Cursor(update.event.seq, step)
    return replace(cursor, step=max(cursor.next_step - 1, update.step))
