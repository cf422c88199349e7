"""Around every call: its id, who calls, the answer to errors, the numbers. Only the health service stays open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from api.access import Door, permit
from api.errors import MalformedBody
from api.meters import Meters
from api.operations import of_rpc
from api.request_id import HEADER, request_id
from api.rpc.errors import status
from api.status import status_of
from jobs.auth import Principal
from jobs.errors import JobsError

T = TypeVar("T")

CALLER: ContextVar[Principal] = ContextVar("caller")
"""Who makes the present call; set by the gate before the servicer runs."""

_OPEN = "/grpc.health.v1.Health/"
_LONG_POLLS = {"/ppo.v1.JobService/WaitJob"}
"""Their time says nothing about the service."""
_KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}

log = structlog.get_logger()


class Gate(grpc.aio.ServerInterceptor):
    """Wraps the handlers of every service but health."""

    def __init__(self, door: Door, meters: Meters) -> None:
        self._door = door
        self._meters = meters

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of the call, wrapped."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or method.startswith(_OPEN):
            return handler
        kind = _KINDS[handler.request_streaming, handler.response_streaming]
        wrap = self._stream if handler.response_streaming else self._single
        serve: Callable[..., Any] = getattr(handler, kind)
        if handler.request_streaming:
            serve = _of_stream(serve)
        read = _lenient(handler.request_deserializer)
        return handler._replace(request_deserializer=read, **{kind: wrap(method, serve)})

    def _single(self, method: str, serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def served(request: Any, context: Any) -> Any:
            async with self._guard(method, request, context, timed=method not in _LONG_POLLS):
                return await serve(_readable(request), context)

        return served

    def _stream(self, method: str, serve: Callable[..., AsyncGenerator[Any]]) -> Callable[..., AsyncGenerator[Any]]:
        async def served(request: Any, context: Any) -> AsyncGenerator[Any]:
            with self._meters.streams.labels("grpc").track_inprogress():
                guard = self._guard(method, request, context, timed=False)
                async with guard, aclosing(serve(_readable(request), context)) as messages:
                    async for message in messages:
                        yield message

        return served

    @asynccontextmanager
    async def _guard(self, method: str, request: Any, context: Any, *, timed: bool = True) -> AsyncIterator[None]:
        started, code = time.perf_counter(), grpc.StatusCode.OK
        pairs = [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
        metadata = dict(pairs)
        call_id = request_id(metadata.get(HEADER))
        # Never unbound: every call has a context of its own, which ends with it.
        structlog.contextvars.bind_contextvars(request_id=call_id)
        operation, principal = of_rpc(method), None
        try:
            await context.send_initial_metadata(((HEADER, call_id),))
            forwarded = [value for key, value in pairs if key == "x-forwarded-for"]
            origin = self._door.origin(call_id, peer_address(context.peer()), forwarded)
            principal = await self._door.enter(metadata.get("authorization"), origin)
            CALLER.set(principal)
            self._door.count(principal)
            permit(principal, operation)
            yield
        except JobsError as error:
            code = status_of(error).grpc
            if principal is not None:
                await self._door.note_refusal(principal, operation, _target(request), error)
            await _refuse(context, error, call_id)
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception:
            log.exception("call_failed", method=method)
            code = grpc.StatusCode.INTERNAL
            await _refuse(context, JobsError("a defect of the service"), call_id)
        finally:
            self._count(method, code, time.perf_counter() - started, timed=timed)

    def _count(self, method: str, code: grpc.StatusCode, seconds: float, *, timed: bool) -> None:
        self._meters.grpc_handled.labels(method, code.name).inc()
        if timed:
            self._meters.grpc_seconds.labels(method).observe(seconds)
        log.info("call_served", method=method, code=code.name, seconds=round(seconds, 4))


class _Garbled:
    """Stands for bytes that are no message: grpc itself would answer INTERNAL before the gate sees the call."""


def _lenient(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_mark(wire: bytes) -> Any:
        try:
            return read(wire)
        except DecodeError:
            return _Garbled()

    return read_or_mark


def _readable(request: T) -> T:
    """The request; raises MalformedBody where it could not be read."""
    if isinstance(request, _Garbled):
        raise MalformedBody("the request is not the message that this method takes")
    return request


def _of_stream(serve: Callable[..., T]) -> Callable[..., T]:
    """The handler of a stream of requests, which stops at one that cannot be read; it answers once or with a stream."""

    def served(requests: AsyncIterator[Any], context: Any) -> T:
        return serve((_readable(request) async for request in requests), context)

    return served


async def _refuse(context: Any, error: JobsError, call_id: str) -> None:
    """Ends the call; raises what grpc ends a handler with."""
    await context.abort_with_status(rpc_status.to_status(status(error, call_id)))


def peer_address(peer: str) -> str | None:
    """The address in grpc's `ipv4:1.2.3.4:567` or `ipv6:%5B::1%5D:567`; None for a peer without one."""
    kind, _, rest = peer.partition(":")
    return unquote(rest).rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None


def _target(request: Any) -> str | None:
    """What the call is about: the first field whose name is that of an id."""
    names = ("job_id", "dataset_id", "webhook_id", "key_id", "owner")
    return next((value for name in names if (value := getattr(request, name, ""))), None)
