"""Many connections that ask nothing, and bodies that drip: somebody who asks is served all the same."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from api.errors import BodyTimeout
from api.rpc.v1 import access_service_pb2 as pb
from api.rpc.v1.access_service_pb2_grpc import AccessServiceStub
from api.uploads import in_time
from jobs.auth import create_key
from jobs.db import Database
from tests.support.http_api import PEPPER, Process, Served, served_on, settings
from tests.support.servers import wait_until

CROWD = 500
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What an HTTP/2 client says first: the preface and empty settings."""


@contextmanager
def crowd(address: str, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that say a little or nothing, and stay."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            connection.sendall(said)
            connection.setblocking(False)
            found.append(connection)
        yield found


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed."""
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.slow
def test_a_client_is_served_while_500_connections_to_each_door_say_nothing(sqlite_process: Process):
    http_place = urlsplit(sqlite_process.http).netloc
    with crowd(http_place, CROWD), crowd(http_place, CROWD, b"GET /livez HTTP/1.1\r\nX-Slow: "):
        assert httpx.get(f"{sqlite_process.http}/v1/me", timeout=60).json()["owner"] == "local"
        with crowd(sqlite_process.grpc, CROWD, PREFACE), grpc.insecure_channel(sqlite_process.grpc) as channel:
            answer = AccessServiceStub(channel).GetMe(pb.GetMeRequest(), timeout=60)
            assert answer.owner == "local"
            assert httpx.get(f"{sqlite_process.http}/v1/me", timeout=60).json()["owner"] == "local"


def own_port(answer: httpx.Response) -> int:
    """The client's end of the connection that an answer came by."""
    port: int = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
    return port


@pytest.fixture
def small(sqlite_url: str, home: Path) -> Iterator[Served]:
    """Both doors with room for ten connections each, and with little patience."""
    db = Database(sqlite_url)
    given = settings(
        home, sqlite_url, http_port=0, grpc_port=0, max_connections=10, body_seconds=0.5, shutdown_seconds=1
    )
    with served_on(db, given) as running:
        yield running
    db.dispose()


def test_beyond_the_most_connections_the_one_idle_for_longest_is_closed(small: Served):
    place = urlsplit(small.http).netloc
    with httpx.Client(timeout=60) as client:
        before = own_port(client.get(f"{small.http}/livez"))
        with crowd(place, 30) as idle:
            wait_until(lambda: sum(map(is_closed, idle)) == 21, 60, lambda: str([is_closed(one) for one in idle]))
            assert not any(is_closed(one) for one in idle[-9:])
            # Whoever has asked before stays longer than whoever never has.
            assert own_port(client.get(f"{small.http}/livez")) == before
            assert httpx.get(f"{small.http}/livez", timeout=60).status_code == 200


def test_where_all_connections_are_busy_a_new_one_is_told_so(small: Served):
    place = urlsplit(small.http).netloc
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: {place}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    object.__setattr__(small.context.settings, "body_seconds", 60.0)
    with crowd(place, 10, head.encode()) as busy, httpx.Client(timeout=60) as client:
        wait_until(lambda: _refused(client, small), 60, lambda: "it was served")
        assert not any(map(is_closed, busy))


def _refused(client: httpx.Client, small: Served) -> bool:
    answer = client.get(f"{small.http}/v1/jobs")
    if answer.status_code == 200:  # not all of the busy ones had been heard
        return False
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "5")
    return True


@pytest.fixture
def silence() -> Iterator[Iterator[bytes]]:
    """A request that does not come as long as the test lasts."""
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    yield never()
    over.set()


def test_a_call_whose_request_never_comes_ends(small: Served, silence: Iterator[bytes]):
    with grpc.insecure_channel(small.grpc) as channel:
        silent = channel.stream_unary("/ppo.v1.JobService/GetJob", None, None)
        with pytest.raises(grpc.RpcError) as late:
            silent(silence, timeout=60)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.5 seconds" in str(late.value.details())
        with pytest.raises(grpc.RpcError) as empty:
            silent(iter(()), timeout=60)
        assert empty.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_call_without_a_key_is_refused_before_its_request_comes(small: Served, silence: Iterator[bytes]):
    object.__setattr__(small.context.settings, "body_seconds", 600.0)
    create_key(small.context.db, "ann", PEPPER)
    with grpc.insecure_channel(small.grpc) as channel:
        silent = channel.stream_unary("/ppo.v1.JobService/GetJob", None, None)
        with pytest.raises(grpc.RpcError) as refused:
            silent(silence, timeout=60)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


# --- uploads ------------------------------------------------------------------------------------------------------


def test_an_upload_that_drips_is_refused(small: Served):
    place = urlsplit(small.http)
    head = f"POST /v1/datasets?name=a.jsonl HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=0.02) as connection:
        connection.sendall(head.encode())
        answer, sent = b"", 0
        while b"}" not in answer:
            assert sent < 3000, "it was read for a minute"
            with suppress(TimeoutError):  # nothing yet; every byte comes well within the time for one
                sent += connection.send(b"x")
                answer += connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"4096 bytes a second" in answer


async def _dripping(count: int, seconds: float) -> AsyncIterator[bytes]:
    for _ in range(count):
        await asyncio.sleep(seconds)
        yield b"x"


def test_parts_that_each_come_in_time_must_come_fast_enough_together():
    async def read() -> int:
        return len([chunk async for chunk in in_time(_dripping(1000, 0.01), 0.3, 1000)])

    with pytest.raises(BodyTimeout):
        asyncio.run(read())


def test_time_in_which_the_sender_is_not_waited_for_does_not_count():
    async def read() -> int:
        received = 0
        async for chunk in in_time(_dripping(20, 0), 0.2, 1e9):
            await asyncio.sleep(0.02)  # the disk is slow
            received += len(chunk)
        return received

    assert asyncio.run(read()) == 20
