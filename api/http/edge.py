"""The outermost layer: a request's id, its log line and numbers, and an answer even where the code has a defect."""

from __future__ import annotations

import time

import structlog
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import defect_response
from api.http.reader import Reader
from api.meters import Meters
from api.rate import Allowance
from api.request_id import HEADER, request_id

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

CLIENT_LEFT = 499
"""nginx's status for a client that closed before its answer; only counted and logged, never sent."""

log = structlog.get_logger()


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app = app
        self.meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.request_id = request_id(request.headers.get(HEADER))
        with structlog.contextvars.bound_contextvars(request_id=request.state.request_id):
            await self._serve(request, Reader(receive, request.headers), send)

    async def _serve(self, request: Request, reader: Reader, send: Send) -> None:
        started, status = time.perf_counter(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request.state.request_id
                headers["X-Content-Type-Options"] = "nosniff"
                allowance: Allowance | None = getattr(request.state, "allowance", None)
                if allowance is not None:
                    headers.update(allowance.headers())
                if not await reader.drain():
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self.app(request.scope, reader.receive, send_marked)
        except ClientDisconnect:
            status = CLIENT_LEFT
        except Exception:
            log.exception("request_failed", method=request.method, path=request.url.path)
            if status:
                raise
            await defect_response(request)(request.scope, reader.receive, send_marked)
        finally:
            self._count(request, status, time.perf_counter() - started)

    def _count(self, request: Request, status: int, seconds: float) -> None:
        # The template, not the path, and known methods only: clients must not be able to make series.
        route = getattr(request.scope.get("route"), "path", "unmatched")
        method = request.method if request.method in _METHODS else "other"
        self.meters.http_requests.labels(method, route, str(status)).inc()
        if not getattr(request.state, "streamed", False):
            self.meters.http_seconds.labels(method, route).observe(seconds)
        log.info("request_served", method=request.method, route=route, status=status, seconds=round(seconds, 4))
