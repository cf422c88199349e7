"""The circuit breaker, with a clock that the test turns."""

from __future__ import annotations

from ppo_engine.rewards.breaker import CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def breaker() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    return CircuitBreaker(limit=3, rest_seconds=10.0, clock=clock), clock


def test_it_opens_after_failures_in_a_row_only() -> None:
    found, _ = breaker()
    for _ in range(5):
        found.failed()
        found.failed()
        assert found.allows()
        found.succeeded()
    for _ in range(3):
        assert found.allows()
        found.failed()
    assert not found.allows()
    assert found.failures == 3


def test_after_its_rest_one_call_tries() -> None:
    found, clock = breaker()
    for _ in range(3):
        found.failed()
    clock.now += 9.9
    assert not found.allows()
    clock.now += 0.2
    assert [found.allows(), found.allows(), found.allows()] == [True, False, False]
    found.failed()
    clock.now += 9.9
    assert not found.allows()
    clock.now += 0.2
    assert found.allows()
    found.succeeded()
    assert [found.allows(), found.allows()] == [True, True]
