"""`python -m worker`: run a worker until SIGTERM."""

from __future__ import annotations

import sys

from jobs.db import Database
from jobs.log import configure
from jobs.migrate import why_not_start
from worker.service import Service
from worker.settings import WorkerSettings

_REFUSED = 2


def main() -> int:
    """Run the worker that the environment describes; returns its exit code, 2 if the tables are too old for it."""
    configure("worker")
    settings = WorkerSettings()
    db = Database(settings.database_url)
    reason = why_not_start(db)
    db.dispose()
    if reason is not None:
        sys.stderr.write(f"python -m worker: {reason}\n")
        return _REFUSED
    return Service(settings).run()


if __name__ == "__main__":
    sys.exit(main())
