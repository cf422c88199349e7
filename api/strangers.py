"""Callers whose keys do not work: counted for each address, so that guessing keys neither pays nor slows the others.

Beyond its limit an address is told to wait. Its keys are still looked up, since others may call from there with keys
that work, but only one at a time: the threads and connections of the database stay free for everybody else.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from api.rate import Buckets, Rate
from jobs.errors import Unauthenticated


@dataclass(slots=True)
class Strangers:
    """Failed authentications of a process, both doors together; used from one event loop."""

    _buckets: Buckets = field(default_factory=Buckets, repr=False)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @asynccontextmanager
    async def turn(self, address: str | None, rate: Rate | None) -> AsyncIterator[None]:
        """Around looking up a caller who is not known; counts it where it raises Unauthenticated.

        Raises:
            RateLimited: instead of Unauthenticated, from an address that is over its limit.
        """
        if rate is None:
            yield
            return
        name = source(address)
        async with AsyncExitStack() as stack:
            if self._buckets.left(name, rate) < 1:
                await stack.enter_async_context(self._one)
            try:
                yield
            except Unauthenticated:
                self._buckets.take(name, rate)
                raise


def source(address: str | None) -> str:
    """Whose address it is: of IPv6 the network that one customer gets, since each has addresses without number."""
    try:
        parsed = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        parsed = parsed.ipv4_mapped
    return str(parsed)
