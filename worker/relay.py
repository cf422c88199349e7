"""`python -m worker.relay`: publishes a wake-up for every queued job, after it was committed and never in its request,
and sends the messages of webhooks.

One or more may run; a job woken twice runs once. Without a broker nothing is lost: workers also poll the database.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

from celery import Celery
from kombu.exceptions import OperationalError

from jobs import lifecycle
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.log import configure
from jobs.migrate import why_not_start
from jobs.startup import unusable
from worker.app import create_app
from worker.courier import Courier
from worker.settings import WorkerSettings
from worker.tasks import is_full, wake

log = logging.getLogger(__name__)

_REFUSED = 2
_TICK_SECONDS = 0.2
_PAUSE_SECONDS = 2.0


def publish_due(db: Database, app: Celery, *, rewake_seconds: float) -> int:
    """Publish the wake-ups that are due; returns how many went out. Raises OperationalError when the broker is away."""
    due = lifecycle.due_wakeups(db, every_seconds=rewake_seconds)
    full = {queue for queue in {queue for _, queue in due} if is_full(app, queue)}
    sent = 0
    for job_id, queue in due:
        if queue not in full:
            wake(app, job_id, queue)
            sent += 1
    return sent


def relay(db: Database, app: Celery, stop: threading.Event, *, rewake_seconds: float) -> None:
    """Publish until stopped; an outage of the broker or the database is waited out."""
    pause_seconds = _TICK_SECONDS
    while not stop.wait(pause_seconds):
        try:
            publish_due(db, app, rewake_seconds=rewake_seconds)
            pause_seconds = _TICK_SECONDS
        except (OperationalError, Unavailable) as error:
            # The wake-ups of this round are due again later; workers find the jobs by polling before that.
            log.warning("cannot publish: %s", error)
            pause_seconds = _PAUSE_SECONDS


def main() -> int:
    """Run the relay that the environment describes, until SIGTERM or SIGINT; 2 if it cannot start with it."""
    configure("relay")
    try:
        settings = WorkerSettings()
        db = Database(settings.database_url)
    except ValueError as error:
        return _refuse(unusable(error))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if (reason := why_not_start(db)) is not None:
        return _refuse(reason)
    courier = Courier(db, settings)
    try:
        courier.start()
        relay(db, create_app(settings, publisher=True), stop, rewake_seconds=settings.rewake_seconds)
    finally:
        courier.stop()
        db.dispose()
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"python -m worker.relay: {reason}\n")
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
