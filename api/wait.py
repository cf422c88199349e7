"""A long poll for a job's end, the same for both doors. Between looks, which all who wait share, it holds nothing."""

from __future__ import annotations

import time

from api.hub import Hub, Pace
from api.threads import in_thread
from api.watch import Source
from jobs import service
from jobs.errors import Unavailable
from jobs.views import JobView

MAX_SECONDS = 60.0
DEFAULT_SECONDS = 50.0


async def wait(source: Source, timeout_seconds: float, pace: Pace, hub: Hub) -> JobView:
    """The job as soon as it is done; as it is then after `timeout_seconds`, or when the server shuts down.

    Raises:
        JobNotFound: there is no such job.
        Unavailable: the database is away.
    """
    deadline, version = time.monotonic() + timeout_seconds, None
    job = await _look(source)
    with hub.follow(source.job_id, source.db, source.stopping, pace) as topic:
        while not job.done and not source.stopping.is_set():
            try:
                version = await topic.moved(version, deadline - time.monotonic())
            except Unavailable:
                if source.stopping.is_set():
                    return job
                raise
            if version is None:
                return await _look(source)
            job = await topic.shared(("wait", source.principal.owner_id), lambda: _look(source))
    return job


async def _look(source: Source) -> JobView:
    return await in_thread(service.get, source.db, source.principal, source.job_id)
