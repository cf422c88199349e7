"""`python -m worker`: run a worker until SIGTERM."""

from __future__ import annotations

from worker.logs import configure
from worker.service import Service
from worker.settings import WorkerSettings


def main() -> None:
    """Run the worker that the environment describes."""
    configure()
    Service(WorkerSettings()).run()


if __name__ == "__main__":
    main()
