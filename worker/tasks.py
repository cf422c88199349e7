"""The one Celery task, and how to send it. A message is a wake-up: it carries a job's id and decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery import Celery
from kombu.entity import Exchange, Queue

log = logging.getLogger(__name__)

RUN_JOB = "run_job"

_EXCHANGE = Exchange("wake", type="direct")  # type: ignore[no-untyped-call]
_FULL = 1000


def wake_queue(name: str) -> Queue:
    """The broker's queue of wake-ups for a queue of jobs."""
    return Queue(f"wake.{name}", _EXCHANGE, routing_key=f"wake.{name}")  # type: ignore[no-untyped-call]


def add_run_job(app: Celery, run_next: Callable[[], bool]) -> None:
    """Register the task. `run_next` claims a job and supervises it to its end, or returns at once.

    Being woken for one job means that there is work: the most urgent job is taken, which may be another one. So a late,
    doubled or reordered message never runs a job out of turn.
    """

    @app.task(name=RUN_JOB, ignore_result=True)  # type: ignore[untyped-decorator]
    def run_job(job_id: str) -> None:
        if not run_next():
            log.debug("woken for %s: nothing to take", job_id)


def wake(app: Celery, job_id: str, queue: str) -> None:
    """Publish one wake-up; raises kombu.exceptions.OperationalError soon when the broker is away."""
    app.send_task(RUN_JOB, args=[job_id], queue=wake_queue(queue), retry=False, ignore_result=True)


def is_full(app: Celery, queue: str) -> bool:
    """Whether so many wake-ups wait that one more wakes nobody: a broker must not grow with the backlog."""
    with app.connection_for_write() as connection:
        # Not passive: kombu 5.7 asks Redis with EXISTS, which it forgets to prefix, and never finds the queue.
        declared = connection.default_channel.queue_declare(wake_queue(queue).name)
        return bool(declared.message_count >= _FULL)
