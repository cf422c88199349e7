from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.errors import Unavailable
from worker.slots import Slots


class Job:
    """Stands where a supervisor does: runs until released."""

    def __init__(self, age: float = 0.0) -> None:
        self.keeper = SimpleNamespace(age_seconds=age)
        self.running, self.release = threading.Event(), threading.Event()

    def run(self) -> None:
        self.running.set()
        assert self.release.wait(10)


def slots(count: int, *jobs: Any) -> tuple[Slots, threading.Semaphore]:
    """Slots that claim these in turn (an exception is raised), then nothing; and a count of slots that became free."""
    queue, freed = list(jobs), threading.Semaphore(0)

    def claim() -> Any:
        item = queue.pop(0) if queue else None
        if isinstance(item, Exception):
            raise item
        return item

    return Slots(count, claim, on_free=freed.release), freed


def test_no_more_jobs_than_slots() -> None:
    jobs = [Job(age=1.0), Job(age=3.0), Job()]
    two, freed = slots(2, *jobs)
    assert two.start_next()
    assert two.start_next()
    assert not two.start_next()
    assert not two.run_next()
    assert (two.busy, two.free, two.oldest_lease_seconds()) == (2, 0, 3.0)
    jobs[0].release.set()
    assert freed.acquire(timeout=30)
    assert two.start_next()
    for job in jobs[1:]:
        assert job.running.wait(5)
        job.release.set()
    two.wait_until_idle()
    assert (two.busy, two.free, two.oldest_lease_seconds()) == (0, 2, 0.0)


def test_a_slot_comes_back_when_there_is_nothing_or_the_claim_fails() -> None:
    job = Job()
    one, _ = slots(1, None, Unavailable("down"), job)
    assert not one.run_next()
    with pytest.raises(Unavailable):
        one.run_next()
    job.release.set()
    assert one.run_next()
    assert one.free == 1
