"""Both doors in one process and one event loop, from start to an orderly end."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn

from api.access import is_loopback
from api.context import Context
from api.http.app import create_app
from api.http.protocol import Protocol
from api.rpc.server import GrpcDoor
from api.schema import HOW_TO_MIGRATE, is_current
from api.settings import ApiSettings
from api.threads import limit_threads
from jobs.auth import has_keys
from jobs.db import Database

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 15
_HEAD_BYTES = 32 << 10

log = structlog.get_logger()


class StartRefused(Exception):
    """The service would not be safe or could not work; the message says what to do."""


def check_start(settings: ApiSettings, db: Database) -> None:
    """Refuse a start without tables, and one that would be open to the network without keys.

    Raises:
        StartRefused: with what to do about it.
        Unavailable: the database cannot be reached.
    """
    if not is_current(db):
        raise StartRefused(HOW_TO_MIGRATE)
    outside = [host for host in (settings.http_host, settings.grpc_host) if not is_loopback(host)]
    if outside and not has_keys(db):
        raise StartRefused(
            f"{outside[0]} can be reached from other machines and there is no API key: make one with "
            "`python -m jobs.admin create-key OWNER` (for `ppo up`: `ppo keys create --local HOME`), or listen on "
            "127.0.0.1"
        )


async def serve(settings: ApiSettings, db: Database) -> None:
    """Serve both doors until SIGTERM or SIGINT, then finish what is in flight.

    Raises:
        StartRefused: an address cannot be listened on.
    """
    doors = Doors(Context(settings, db))
    await doors.serve_until(_signalled())


class Doors:
    """Both doors of one context, on their addresses; made inside the event loop that serves them.

    Raises:
        StartRefused: an address cannot be listened on.
    """

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._listener = _listen(settings)
        try:
            self._grpc = _grpc_door(context)
        except StartRefused:
            self._listener.close()
            raise
        self.http_address = _address(settings.http_host, self._listener.getsockname()[1])
        self.grpc_address = _address(settings.grpc_host, self._grpc.port)

    async def serve_until(self, stop: asyncio.Future[None]) -> None:
        """Serve until `stop` is done, then finish what is in flight."""
        limit_threads(self._context.settings.api_threads)
        http = _HttpDoor(_http_config(self._context))
        await self._grpc.start()
        serving = asyncio.create_task(http.serve([self._listener]))
        log.info("api_started", http=self.http_address, grpc=self.grpc_address)
        await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        log.info("api_stopping")
        # Followers are told first: their streams would not end by themselves.
        self._context.stopping.set()
        http.should_exit = True
        await asyncio.gather(self._grpc.stop(self._context.settings.shutdown_seconds), serving)
        log.info("api_stopped")


class _HttpDoor(uvicorn.Server):
    """uvicorn without its own signal handlers, which end the process with the signal instead of 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`."""
        yield


def _http_config(context: Context) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(context),
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `api.forwarded` reads them, for both doors
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        limit_concurrency=context.settings.max_connections,
        timeout_graceful_shutdown=math.ceil(context.settings.shutdown_seconds),
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )


def _listen(settings: ApiSettings) -> socket.socket:
    host, port = settings.http_host.strip("[]"), settings.http_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY only on sockets that say they are TCP, and without it every
    # answer on a kept connection waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartRefused(f"cannot listen on {_address(host, port)}: {error.strerror or error}") from error
    return listener


def _grpc_door(context: Context) -> GrpcDoor:
    try:
        return GrpcDoor(context)
    except RuntimeError as error:
        address = _address(context.settings.grpc_host, context.settings.grpc_port)
        raise StartRefused(
            f"cannot listen on {address} for gRPC: the address is taken or not of this machine"
        ) from error


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _signalled() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; a second one ends the process at once, as is usual."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        stop.set_result(None)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    return stop
