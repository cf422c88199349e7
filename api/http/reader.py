"""A request's body as it is read, and what becomes of the part that nobody reads.

A client that is still sending when the server answers and closes often sees a reset instead of the answer. So a refused
body is read to its end and forgotten, within bounds; beyond them the connection is closed, since an endless body would
otherwise be swallowed for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import Message, Receive

DRAIN_BYTES = 16 << 20
DRAIN_SECONDS = 2.0


class Reader:
    """Stands in for ASGI's `receive` of one request."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._started = False
        self._waits_for_a_word = headers.get("expect", "").lower() == "100-continue"
        self.complete = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """The next message; notices the last one."""
        self._started = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.complete = True
        return message

    async def drain(self) -> bool:
        """Read what is left and forget it; False where the connection must be closed instead."""
        if self._waits_for_a_word and not self._started:
            return self.complete  # the client has sent nothing yet, and a read would ask it to
        left = DRAIN_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self.complete and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        return self.complete
