"""A response of server-sent events that does not wait for ever for a client that takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Send

STUCK_SECONDS = 60.0
"""A client that reads nothing for so long is let go; it may come back with its last id."""


class EventStream(StreamingResponse):
    """The text of a stream, as it comes."""

    def __init__(self, text: AsyncGenerator[str, None]) -> None:
        self._text = text
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(text, media_type="text/event-stream", headers=headers)

    async def stream_response(self, send: Send) -> None:
        """Send until the stream's end, or until the client takes nothing more."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    await send(message)
            except TimeoutError as error:
                raise ClientDisconnect from error

        async with aclosing(self._text):
            await super().stream_response(send_in_time)
