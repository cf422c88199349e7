"""`python -m worker`: run a worker until SIGTERM."""

from __future__ import annotations

import sys

from jobs.db import Database
from jobs.log import configure
from jobs.migrate import why_not_start
from jobs.startup import unusable
from worker.service import Service
from worker.settings import WorkerSettings

_REFUSED = 2


def main() -> int:
    """Run the worker that the environment describes; returns its exit code, 2 if it cannot start with it."""
    configure("worker")
    try:
        settings = WorkerSettings()
        db = Database(settings.database_url)
    except ValueError as error:
        return _refuse(unusable(error))
    reason = why_not_start(db)
    db.dispose()
    return Service(settings).run() if reason is None else _refuse(reason)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"python -m worker: {reason}\n")
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
