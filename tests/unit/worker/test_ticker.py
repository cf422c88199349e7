from __future__ import annotations

import threading

from jobs.errors import Unavailable
from worker.ticker import Ticker


class Counter:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = threading.Semaphore(0)

    def __call__(self) -> None:
        self.runs.release()
        if self.errors:
            raise self.errors.pop(0)

    def ran(self) -> bool:
        return self.runs.acquire(timeout=30)


def test_it_runs_at_once_and_again() -> None:
    work = Counter()
    ticker = Ticker("t", work, every_seconds=0.01)
    ticker.start()
    assert all(work.ran() for _ in range(3))
    ticker.stop()


def test_errors_do_not_end_it() -> None:
    work = Counter(Unavailable("down"), ValueError("a defect"))
    ticker = Ticker("t", work, every_seconds=0.01)
    ticker.start()
    assert all(work.ran() for _ in range(4))
    ticker.stop()


def test_a_kick_does_not_wait_for_the_tick() -> None:
    work = Counter()
    ticker = Ticker("t", work, every_seconds=600)
    ticker.start()
    assert work.ran()
    ticker.kick()
    assert work.ran()
    ticker.stop()


def test_stopping_does_not_wait_for_the_tick() -> None:
    ticker = Ticker("t", Counter(), every_seconds=600)
    ticker.start()
    ticker.stop()
    assert "t" not in [thread.name for thread in threading.enumerate()]


def test_one_that_never_started_can_be_stopped() -> None:
    Ticker("t", Counter(), every_seconds=1).stop()
