"""Around every call: its id, who calls, the answer to errors, the numbers. Only the health service stays open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from api.access import Door, permit
from api.errors import BodyTimeout, MalformedBody
from api.meters import Meters
from api.operations import of_rpc
from api.request_id import HEADER, request_id
from api.rpc.errors import status
from api.status import status_of
from jobs.auth import Principal
from jobs.errors import JobsError

T = TypeVar("T")
Receive = Callable[[AsyncIterator[Any]], Awaitable[Any]]

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
        serve: Callable[..., Any] = getattr(handler, _KINDS[handler.request_streaming, handler.response_streaming])
        receive = _all if handler.request_streaming else self._one
        wrap, kind = (self._stream, "stream_stream") if handler.response_streaming else (self._single, "stream_unary")
        # All take a stream here: grpc itself waits for a single message for ever, before the gate sees the call, and so
        # a caller without a key could hold all the calls that the door takes.
        plain = handler._replace(unary_unary=None, unary_stream=None, request_streaming=True)
        read = _lenient(handler.request_deserializer)
        return plain._replace(request_deserializer=read, **{kind: wrap(method, serve, receive)})

    def _single(
        self, method: str, serve: Callable[..., Awaitable[Any]], receive: Receive
    ) -> Callable[..., Awaitable[Any]]:
        async def served(messages: AsyncIterator[Any], context: Any) -> Any:
            async with self._guard(
                method, partial(receive, messages), context, timed=method not in _LONG_POLLS
            ) as request:
                return await serve(request, context)

        return served

    def _stream(
        self, method: str, serve: Callable[..., AsyncGenerator[Any]], receive: Receive
    ) -> Callable[..., AsyncGenerator[Any]]:
        async def served(messages: AsyncIterator[Any], context: Any) -> AsyncGenerator[Any]:
            with self._meters.streams.labels("grpc").track_inprogress():
                async with (
                    self._guard(method, partial(receive, messages), context, timed=False) as request,
                    aclosing(serve(request, context)) as answers,
                ):
                    async for answer in answers:
                        yield answer

        return served

    async def _one(self, messages: AsyncIterator[Any]) -> Any:
        """The request of a call that has one; it must come as soon as a body of HTTP."""
        seconds = self._door.settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                message = await anext(aiter(messages), None)
        except TimeoutError as error:
            raise BodyTimeout(f"the request must arrive within {seconds:g} seconds") from error
        if message is None:
            raise MalformedBody("the call has no request")
        return _readable(message)

    @asynccontextmanager
    async def _guard(
        self, method: str, receive: Callable[[], Awaitable[Any]], context: Any, *, timed: bool = True
    ) -> AsyncIterator[Any]:
        started, code = time.perf_counter(), grpc.StatusCode.OK
        pairs = [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
        metadata = dict(pairs)
        call_id = request_id(metadata.get(HEADER))
        # Never unbound: every call has a context of its own, which ends with it.
        structlog.contextvars.bind_contextvars(request_id=call_id)
        operation, principal, request = of_rpc(method), None, None
        try:
            await context.send_initial_metadata(((HEADER, call_id),))
            forwarded = [value for key, value in pairs if key == "x-forwarded-for"]
            origin = self._door.origin(call_id, peer_address(context.peer()), forwarded)
            principal = await self._door.enter(metadata.get("authorization"), origin)
            CALLER.set(principal)
            self._door.count(principal)
            request = await receive()
            permit(principal, operation)
            yield request
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


async def _all(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The requests of a call that has many; they stop at one that cannot be read."""
    return (_readable(message) async for message in messages)


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
