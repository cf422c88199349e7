"""A long poll for a job's end, the same for both doors. Between looks it holds no thread and no connection."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from api.threads import in_thread
from api.watch import Pace, Source
from jobs import service
from jobs.views import JobView

MAX_SECONDS = 60.0
DEFAULT_SECONDS = 50.0


async def wait(source: Source, timeout_seconds: float, pace: Pace) -> JobView:
    """The job as soon as it is done; as it is then after `timeout_seconds`, or when the server shuts down.

    Raises:
        JobNotFound: there is no such job.
    """
    deadline, delay = time.monotonic() + timeout_seconds, pace.first_seconds
    while True:
        job = await in_thread(service.get, source.db, source.principal, source.job_id)
        left = deadline - time.monotonic()
        if job.done or left <= 0 or source.stopping.is_set():
            return job
        with suppress(TimeoutError):
            await asyncio.wait_for(source.stopping.wait(), min(delay, left))
        delay = min(delay * 1.5, pace.slowest_seconds)
