"""`python -m worker`: run a worker until SIGTERM."""

from __future__ import annotations

from jobs.log import configure
from worker.service import Service
from worker.settings import WorkerSettings


def main() -> None:
    """Run the worker that the environment describes."""
    configure("worker")
    Service(WorkerSettings()).run()


if __name__ == "__main__":
    main()
