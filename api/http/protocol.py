"""uvicorn's HTTP/1.1 with two gaps closed: heads that never end, and a refusal that is no problem+json."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import RequestRefused
from api.http.errors import MEDIA_TYPE
from api.request_id import HEADER
from api.status import status_of, type_uri

HEAD_SECONDS = 10.0


class Protocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The first head may take as long as any."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head that is not complete start its deadline; uvicorn itself would wait for ever."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        super().connection_lost(exc)
        self._forget_deadline()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is refused as everything else is."""
        status = status_of(RequestRefused)
        request_id = uuid.uuid4().hex
        problem: dict[str, Any] = {
            "type": type_uri(RequestRefused),
            "title": status.title,
            "status": status.http.value,
            "detail": msg,
            "code": RequestRefused.code,
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
