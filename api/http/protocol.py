"""uvicorn's HTTP/1.1 with three gaps closed: heads that never end, connections without number, and refusals that are no
problem+json."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import RequestRefused
from api.http.errors import MEDIA_TYPE
from api.request_id import HEADER
from api.status import retry_after_seconds, status_of, type_uri
from jobs.errors import JobsError, Unavailable

HEAD_SECONDS = 10.0


class Protocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    _waiting_since = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn itself would refuse all requests, in plain text, while enough connections are open that ask nothing.
        self._most, self.limit_concurrency = self.limit_concurrency or sys.maxsize, None

    def connection_made(self, transport: Any) -> None:
        """The first head may take as long as any; one connection too many costs the one that was idle for longest."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self._watch_head()
        if len(self.connections) > self._most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head that is not complete start its deadline; uvicorn itself would wait for ever."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """From now on the connection is idle."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        super().connection_lost(exc)
        self._forget_deadline()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is refused as everything else is."""
        self._refuse(RequestRefused(msg))

    def _make_room(self) -> None:
        """Close the connection that has asked nothing for longest, those first that never asked; else this one."""
        kept = [found for found in self.connections if isinstance(found, Protocol) and not found.transport.is_closing()]
        idle = [found for found in kept if found.conn.their_state is h11.IDLE and found is not self]
        if len(kept) <= self._most:
            return
        if idle:
            min(idle, key=lambda found: (found.cycle is not None, found._waiting_since)).transport.close()
        else:
            self._refuse(Unavailable("all connections of this service are in use"))

    def _refuse(self, error: JobsError) -> None:
        status = status_of(error)
        request_id = uuid.uuid4().hex
        problem: dict[str, Any] = {
            "type": type_uri(error),
            "title": status.title,
            "status": status.http.value,
            "detail": error.message,
            "code": error.code,
            "request_id": request_id,
            "errors": [],
        }
        body = json.dumps(problem).encode()
        headers = {
            "content-type": MEDIA_TYPE,
            "content-length": str(len(body)),
            HEADER: request_id,
            "connection": "close",
        }
        pause = retry_after_seconds(error)
        if pause is not None:
            headers["retry-after"] = str(pause)
        head = h11.Response(status_code=status.http.value, headers=list(headers.items()), reason=status.http.phrase)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
