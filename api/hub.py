"""One look at the database for all who follow jobs: hundreds of followers cost what one costs.

A single task asks for the version of every followed job, in one statement. Followers sleep until the version of theirs
moves; those who stand at the same place then share one read. Nothing is queued for anybody: a follower who is slow
reads on from its own place when it comes back, and the database is the buffer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import structlog

from api.threads import in_thread
from jobs.db import Database
from jobs.errors import JobsError, Unavailable
from jobs.fleet import JobVersion, job_versions

_SHARED_READS = 16
"""Readings kept for one version of a job: followers who keep up stand at one or two places."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between looks (longer while nothing happens) and between signs of life."""

    first_seconds: float = 0.25
    slowest_seconds: float = 2.0
    heartbeat_seconds: float = 15.0


@dataclass(eq=False, slots=True)
class Topic:
    """One followed job."""

    followers: int = 0
    version: JobVersion | None = None
    failure: JobsError | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _reads: dict[Hashable, asyncio.Task[Any]] = field(default_factory=dict)

    async def moved(self, seen: JobVersion | None, timeout_seconds: float) -> JobVersion | None:
        """The version, once it is another than `seen`; None if it is not in time.

        Raises:
            Unavailable: the server stops or the database is away.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.failure is None and self.version in (None, seen):
                    await self._moved.wait()
        if self.failure is not None:
            raise self.failure
        return None if self.version == seen else self.version

    async def shared(self, place: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """What `read` gives; the followers at one place of one version are given the same reading."""
        task = self._reads.get(place)
        if task is None:
            task = asyncio.ensure_future(read())
            if len(self._reads) < _SHARED_READS:
                self._reads[place] = task
                task.add_done_callback(lambda done: self._forget_failure(place, done))
        # Whoever leaves must not take the reading from the others.
        return await asyncio.shield(task)

    def tell(self, version: JobVersion | None, failure: JobsError | None = None) -> bool:
        """Wake the followers if the job has moved, and forget what was read of it before."""
        if failure is None and version in (None, self.version):
            return False
        self.version, self.failure = version, failure
        self._reads = {}
        self._moved.set()
        self._moved = asyncio.Event()
        return True

    def _forget_failure(self, place: Hashable, done: asyncio.Task[Any]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._reads.get(place) is done:
            del self._reads[place]


class Hub:
    """The topics of a process; belongs to its event loop."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._looking: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()

    @contextmanager
    def follow(self, job_id: str, db: Database, stopping: asyncio.Event, pace: Pace) -> Iterator[Topic]:
        """The topic of a job whose owner the caller is known to be."""
        topic = self._topics.setdefault(job_id, Topic())
        topic.followers += 1
        self._joined.set()
        if self._looking is None or self._looking.done():
            # In a context of its own: it serves everybody, not the request that happened to come first.
            self._looking = asyncio.create_task(self._look(db, stopping, pace), context=Context())
        try:
            yield topic
        finally:
            topic.followers -= 1
            if not topic.followers and self._topics.get(job_id) is topic:
                del self._topics[job_id]

    async def _look(self, db: Database, stopping: asyncio.Event, pace: Pace) -> None:
        """Look until nobody follows; a failure ends all streams, which their clients take up again."""
        delay = pace.first_seconds
        while self._topics:
            await self._rest(stopping, delay, pace)
            delay = min(delay * 1.5, pace.slowest_seconds)
            try:
                if stopping.is_set():
                    raise Unavailable("the server is shutting down; go on from the last cursor")
                versions = await in_thread(job_versions, db, list(self._topics))
            except JobsError as error:
                self._fail(error)
                return
            except Exception:
                log.exception("hub_failed")
                self._fail(Unavailable("the service failed at following jobs; go on from the last cursor"))
                return
            if sum(topic.tell(versions.get(job_id)) for job_id, topic in self._topics.items()):
                delay = pace.first_seconds

    async def _rest(self, stopping: asyncio.Event, seconds: float, pace: Pace) -> None:
        """Wait for the next look: at most `seconds`, less when somebody joins, but never less than the first pause."""
        until = time.monotonic() + seconds
        soonest = time.monotonic() + pace.first_seconds
        self._joined.clear()
        while not stopping.is_set() and (left := until - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), min(left, pace.first_seconds))
            if self._joined.is_set() and time.monotonic() >= soonest:
                return

    def _fail(self, error: JobsError) -> None:
        topics, self._topics = self._topics, {}
        for topic in topics.values():
            topic.tell(None, error)
