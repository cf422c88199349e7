from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from jobs.errors import LeaseLost, Unavailable
from jobs.lifecycle import Wishes
from worker.lease import LeaseKeeper, now


class Loss:
    """Waits for the keeper's `on_loss`, and counts it."""

    def __init__(self) -> None:
        self.count = 0
        self._happened = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self._happened.set()

    def wait(self, timeout_seconds: float = 60.0) -> bool:
        return self._happened.wait(timeout_seconds)


def keeper(beat: Callable[[], Wishes], loss: Loss, *, fence_seconds: float = 0.5, age: float = 0.0) -> LeaseKeeper:
    return LeaseKeeper(beat, claimed_at=now() - age, heartbeat_seconds=0.02, fence_seconds=fence_seconds, on_loss=loss)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_heartbeats_keep_the_lease_young_and_bring_the_wish_to_cancel() -> None:
    answers = iter([Wishes(cancel=False), Wishes(cancel=True)])
    loss = Loss()
    with keeper(lambda: next(answers, Wishes(cancel=False)), loss) as kept:
        wait_for(lambda: kept.wishes.cancel)
        time.sleep(0.6)
        assert kept.age_seconds < 0.5
    assert kept.wishes.cancel, "a wish once heard stays"
    assert (kept.lost, kept.fenced, loss.count) == (False, False, 0)


def test_a_lost_lease_is_told_once() -> None:
    def beat() -> Wishes:
        raise LeaseLost("token is old")

    loss = Loss()
    with keeper(beat, loss, fence_seconds=5) as kept:
        assert loss.wait()
        time.sleep(0.1)
    assert kept.lost
    assert (kept.fenced, loss.count) == (False, 1)


def test_a_hung_heartbeat_does_not_hold_up_the_fence() -> None:
    release = threading.Event()

    def hang() -> Wishes:
        release.wait(100)
        return Wishes(cancel=False)

    loss = Loss()
    started = time.monotonic()
    with keeper(hang, loss, fence_seconds=0.3) as kept:
        assert loss.wait()
        assert time.monotonic() - started > 0.25
        assert kept.fenced
        release.set()


def test_time_counts_from_when_the_heartbeat_was_sent() -> None:
    """The answer takes 0.3 s: right after it the lease is that old, not new."""
    ages: list[float] = []

    def slow() -> Wishes:
        time.sleep(0.3)
        return Wishes(cancel=False)

    def note_age(_seconds: float | None) -> None:
        ages.append(kept.age_seconds)

    kept = LeaseKeeper(
        slow, claimed_at=now(), heartbeat_seconds=0.02, fence_seconds=5, on_loss=Loss(), observe=note_age
    )
    with kept:
        wait_for(lambda: len(ages) >= 2)
    assert min(ages) >= 0.3


def test_an_outage_inside_the_fence_is_survived() -> None:
    outage = [True]

    def beat() -> Wishes:
        if outage[0]:
            raise Unavailable("down")
        return Wishes(cancel=False)

    seen: list[float | None] = []
    loss = Loss()
    kept = LeaseKeeper(
        beat, claimed_at=now(), heartbeat_seconds=0.02, fence_seconds=2, on_loss=loss, observe=seen.append
    )
    with kept:
        wait_for(lambda: None in seen)
        outage[0] = False
        wait_for(lambda: any(seconds is not None for seconds in seen))
    assert (kept.fenced, loss.count) == (False, 0)


@pytest.mark.parametrize("age", [0.5, 100.0])
def test_a_claim_that_took_too_long_is_fenced_at_once(age: float) -> None:
    loss = Loss()
    with keeper(lambda: Wishes(cancel=False), loss, fence_seconds=0.5, age=age) as kept:
        assert loss.wait(1)
    assert kept.fenced


def test_nothing_happens_after_the_end() -> None:
    loss = Loss()
    with keeper(lambda: Wishes(cancel=False), loss, fence_seconds=0.1):
        pass
    assert not loss.wait(0.4)


def test_a_lease_that_cannot_be_trusted_is_refused_at_once() -> None:
    def hang() -> Wishes:
        raise Unavailable("away")

    keeper(hang, Loss(), fence_seconds=5).require()
    with pytest.raises(LeaseLost):
        keeper(hang, Loss(), fence_seconds=5, age=6).require()
    lost = keeper(hang, Loss(), fence_seconds=5)
    lost.lost = True
    with pytest.raises(LeaseLost):
        lost.require()
