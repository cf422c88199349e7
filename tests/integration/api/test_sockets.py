"""What only real sockets show: bodies in pieces, downloads that are cut, connections that dawdle."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import structlog

from api.http import protocol
from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.db import Database
from ppo_engine.events import CheckpointSaved
from tests.support.attempts import claimed, submitted
from tests.support.http_api import Served, served_on, settings
from tests.support.problem_json import problem
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}
MIB = 1 << 20


@pytest.fixture
def here(sqlite_url: str, home: Path) -> Iterator[Served]:
    """Both doors on SQLite, with little patience for slow bodies."""
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0, body_seconds=0.5, shutdown_seconds=1)
    with served_on(db, given) as running:
        yield running
    db.dispose()


def test_too_large_a_body_is_told_so_however_it_is_sent(here: Served):
    declared = httpx.post(f"{here.http}/v1/jobs", content=b" " * (4 * MIB), headers=JSON, timeout=60)
    problem(declared, 413, "body_too_large")
    pieces = (b" " * 100_000 for _ in range(40))
    problem(httpx.post(f"{here.http}/v1/jobs", content=pieces, headers=JSON, timeout=60), 413, "body_too_large")


def test_an_endless_body_is_cut_off(here: Served):
    url = urlsplit(here.http)
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    head = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(f"POST /v1/jobs HTTP/1.1\r\nHost: {url.netloc}\r\n{head}".encode())
        with pytest.raises(ConnectionError):
            connection.sendall(chunk * 200)


def test_a_client_that_asks_first_is_refused_before_it_sends(here: Served):
    url = urlsplit(here.http)
    head = f"Content-Type: application/json\r\nContent-Length: {4 * MIB}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(f"POST /v1/jobs HTTP/1.1\r\nHost: {url.netloc}\r\n{head}".encode())
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", ["/v1/jobs", "/livez", "/nope"])
def test_a_refusal_reaches_a_client_that_sends_a_large_body(here: Served, path: str):
    response = httpx.post(
        f"{here.http}{path}", content=b"x" * (8 * MIB), headers={"Content-Type": "text/plain"}, timeout=60
    )
    problem(response, response.status_code, response.json()["code"])
    assert response.status_code in (404, 405, 415)


def test_a_body_that_drips_is_refused(here: Served):
    url = urlsplit(here.http)
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    )
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"{")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer


def raw(here: Served, sent: bytes) -> bytes:
    """What comes back for some bytes, until the server closes."""
    url = urlsplit(here.http)
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_is_not_http_is_a_problem_too(here: Served):
    answer = raw(here, b"HELO there\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "request_refused"


def test_a_head_that_never_ends_is_cut_off(here: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    assert raw(here, b"") == b""
    assert raw(here, b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""


def test_a_second_head_that_never_ends_is_cut_off(here: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    url = urlsplit(here.http)
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while b"alive" not in answer:
            answer += connection.recv(65536)
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        assert connection.recv(65536) == b""


def test_a_client_that_leaves_while_it_sends_is_no_defect(here: Served):
    url = urlsplit(here.http)
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    )
    with structlog.testing.capture_logs() as lines:
        with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
            connection.sendall(head.encode() + b"{")
        wait_until(lambda: any(line.get("status") == 499 for line in lines), 60, lambda: str(lines))
    assert {line["log_level"] for line in lines} == {"info"}


def test_answers_on_a_kept_connection_do_not_wait_for_acknowledgements(here: Served):
    with httpx.Client(timeout=60) as client:
        client.get(f"{here.http}/livez")
        stream = client._transport._pool.connections[0]._connection._network_stream  # type: ignore[attr-defined]
        peer = stream.get_extra_info("socket").getsockname()
        assert _nodelay_of_the_connection_from(peer)


def _nodelay_of_the_connection_from(peer: tuple[str, int]) -> bool:
    """Whether this process's end of a connection sends without waiting; its server runs in a thread here."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as candidate:
                    if candidate.getpeername() == peer:
                        return candidate.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    raise AssertionError("no such connection")


@pytest.fixture
def archive(here: Served) -> str:
    """URL of a checkpoint's archive, larger than the buffers on the way."""
    db = here.context.db
    held = claimed(db, submitted(db, LOCAL))
    folder = here.context.settings.run_dir(held.lease.job_id).root / "checkpoints/step-00000001-1"
    folder.mkdir(parents=True)
    for name in ("a", "b", "manifest.json"):
        (folder / name).write_bytes(os.urandom(8 * MIB))
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    event = CheckpointSaved(step=1, path="checkpoints/step-00000001-1", size_bytes=24 * MIB, sha256=digest)
    lifecycle.record_checkpoint(db, held.lease, event)
    return f"{here.http}/v1/jobs/{held.lease.job_id}/checkpoints/1/archive"


def test_a_checkpoint_deleted_while_it_is_sent_still_arrives_whole(here: Served, archive: str):
    with httpx.stream("GET", archive, timeout=60) as response:
        chunks = response.iter_bytes()
        received = next(chunks)
        shutil.rmtree(here.context.settings.runs_dir)
        received += b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(received)) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        assert hashlib.sha256(manifest.read()).hexdigest() == response.headers["x-checkpoint-sha256"]
    assert len(received) == int(response.headers["content-length"])


def test_a_download_that_is_given_up_holds_no_file(here: Served, archive: str):
    # Left to itself, Linux may let the receive buffer grow until the whole archive fits.
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)])
    with httpx.Client(transport=small) as client, client.stream("GET", archive, timeout=60) as response:
        chunks = response.iter_bytes()  # kept: httpx gives a download up as soon as its iterator is gone
        next(chunks)
        wait_until(lambda: _open_files(here) > 0, 60, lambda: "no file was ever open")
    wait_until(lambda: _open_files(here) == 0, 60, lambda: f"{_open_files(here)} files are still open")


def _open_files(here: Served) -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += entry.readlink().is_relative_to(here.context.settings.runs_dir)
    return count
