"""Failed keys are counted for each address, and an address over its limit holds one thread and no more."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from api.errors import RateLimited
from api.rate import failures
from api.strangers import Strangers, source
from jobs.errors import Unauthenticated

TWO = failures(per_second=0.001, burst=2)


async def fail(strangers: Strangers, address: str) -> None:
    with suppress(Unauthenticated):
        async with strangers.turn(address, TWO):
            raise Unauthenticated("no")


def test_beyond_the_limit_a_failure_is_a_wait_and_a_success_is_none():
    asyncio.run(_beyond_the_limit())


async def _beyond_the_limit() -> None:
    strangers = Strangers()
    await fail(strangers, "198.51.100.1")
    await fail(strangers, "198.51.100.1")
    for _ in range(2):
        with pytest.raises(RateLimited) as refused:
            await fail(strangers, "198.51.100.1")
        assert 900 < refused.value.retry_after_seconds <= 1000
        assert refused.value.headers["RateLimit-Policy"].startswith('"failed-keys";q=2')
        async with strangers.turn("198.51.100.1", TWO):
            pass
    await fail(strangers, "198.51.100.2")


def test_an_address_over_its_limit_is_looked_up_one_request_at_a_time():
    asyncio.run(_one_at_a_time())


async def _one_at_a_time() -> None:
    strangers, inside, most, leave = Strangers(), 0, 0, asyncio.Event()
    await fail(strangers, "198.51.100.1")
    await fail(strangers, "198.51.100.1")

    async def look_up(address: str) -> None:
        nonlocal inside, most
        async with strangers.turn(address, TWO):
            inside += 1
            most = max(most, inside)
            await leave.wait()
            inside -= 1

    waiting = [asyncio.create_task(look_up("198.51.100.1")) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert inside == 1
    others = [asyncio.create_task(look_up("198.51.100.2")) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert inside == 4
    leave.set()
    await asyncio.gather(*waiting, *others)
    assert most == 4


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "unknown"),
        (None, "unknown"),
    ],
)
def test_who_counts_as_one(address: str | None, name: str):
    assert source(address) == name
