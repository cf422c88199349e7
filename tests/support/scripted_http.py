"""A real HTTP server on a free port that answers a scripted list, in order, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer. `cut` closes the connection before the promised length is sent."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    drop: bool = False
    """Close the connection without any answer."""
    after_seconds: float = 0.0
    """How long it is silent first."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer in JSON."""
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def problem(status: int, *, headers: Mapping[str, str] | None = None, **members: Any) -> Reply:
    """An answer in problem+json."""
    body = json.dumps({"status": status, **members}).encode()
    return Reply(status, body, {"Content-Type": "application/problem+json", **(headers or {})})


def event_stream(*frames: str, cut: bool = False) -> Reply:
    """Server-sent events, then the end of the connection."""
    return Reply(200, "".join(frames).encode(), {"Content-Type": "text/event-stream"}, cut=cut)


@dataclass
class ScriptedServer:
    """Where it listens and what it was asked."""

    url: str
    asked: list[Asked]


@contextmanager
def serve(replies: Sequence[Reply]) -> Iterator[ScriptedServer]:
    """Answer with `replies` in turn; a request beyond them gets 500."""
    script, asked = iter(replies), list[Asked]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(Asked(self.command, self.path, dict(self.headers.items()), body))
            reply = next(script, Reply(500, b"the script is over"))
            self.close_connection = True
            time.sleep(reply.after_seconds)
            if reply.drop:
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body) + (1000 if reply.cut else 0)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815 (names that http.server looks for)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield ScriptedServer(f"http://127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
