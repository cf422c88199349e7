"""`python -m worker`: run a worker until SIGTERM."""

from __future__ import annotations

import sys

from jobs.log import configure
from worker.service import Service
from worker.settings import WorkerSettings


def main() -> int:
    """Run the worker that the environment describes; returns its exit code."""
    configure("worker")
    return Service(WorkerSettings()).run()


if __name__ == "__main__":
    sys.exit(main())
