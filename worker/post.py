"""One delivery: a signed POST to a checked address, without redirects, within one time limit."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from ssl import SSLContext

import httpx

from jobs.dispatch import DueMessage, Result
from jobs.webhook_signing import signature
from ppo_engine.egress import Egress

SHOWN_BYTES = 512
_MOST_SECONDS_TO_WAIT = 4 * 3600.0


class Undelivered(Exception):
    """There was no answer; the message says why, for the owner of the webhook."""


@dataclass(frozen=True, slots=True)
class Post:
    """A message as it goes over the wire."""

    headers: dict[str, str]
    body: bytes


def signed(message: DueMessage, timestamp: int) -> Post:
    """The request of a message, signed for the present second. The body is the same at every attempt."""
    moment = message.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    content = {"type": message.type, "timestamp": moment, "data": message.data}
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    signatures = [signature(secret, message.id, timestamp, body) for secret in message.secrets]
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "ppo-service",
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
    return Post(headers, body)


async def deliver(message: DueMessage, egress: Egress, timeout_seconds: float) -> Result:
    """Try once; every failure is a result. Only a cancelled caller ends it early."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds):
            status, answer, pause = await _send(message.url, signed(message, int(time.time())), egress)
    except TimeoutError:
        return Result(None, f"no answer within {timeout_seconds:g} s", time.monotonic() - started)
    except Undelivered as error:
        return Result(None, str(error), time.monotonic() - started)
    return Result(status, _refusal(status), time.monotonic() - started, answer, pause)


def _refusal(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    return "a redirect; they are not followed" if 300 <= status < 400 else f"the receiver answered {status}"


async def _send(text: str, post: Post, egress: Egress) -> tuple[int, str, float]:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Undelivered(f"not a URL: {error}") from error
    port = url.port or (443 if url.scheme == "https" else 80)
    refusal: httpx.TransportError | None = None
    # Proxies of the environment would look the host up again, and get past the check.
    tls = _tls() if url.scheme == "https" else False
    async with httpx.AsyncClient(verify=tls, trust_env=False, follow_redirects=False, timeout=None) as client:  # noqa: S113
        for address in await _addresses(url.host, port, egress):
            try:
                return await _ask(client, url, address, post)
            except httpx.ConnectError as error:
                refusal = error
            except httpx.TransportError as error:
                raise Undelivered(f"the connection failed: {type(error).__name__}") from error
    raise Undelivered(f"no connection ({str(refusal)[:100]})")


async def _addresses(host: str, port: int, egress: Egress) -> list[str]:
    """Where a host is now; all of its addresses must be public, or the host allowed by the operator."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Undelivered(f"the host {host} cannot be looked up: {type(error).__name__}") from error
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    private = egress.refused(host, port, addresses)
    if private is not None:
        raise Undelivered(f"{host}:{port} is at {private}, which is not a public address")
    return addresses


async def _ask(client: httpx.AsyncClient, url: httpx.URL, address: str, post: Post) -> tuple[int, str, float]:
    headers = {**post.headers, "Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity"}
    place = url.copy_with(host=address, fragment=None)
    # TLS: the name is sent, and the certificate checked against it, although the URL has the address.
    names = {"sni_hostname": url.host}
    async with client.stream("POST", place, content=post.body, headers=headers, extensions=names) as answer:
        shown = bytearray()
        async for chunk in answer.aiter_raw():
            shown += chunk[: SHOWN_BYTES - len(shown)]
            if len(shown) >= SHOWN_BYTES:
                break
        wanted = answer.headers.get("retry-after", "")
    pause = min(float(wanted), _MOST_SECONDS_TO_WAIT) if wanted.isascii() and wanted.isdecimal() else 0.0
    return answer.status_code, shown.decode("utf-8", "replace"), pause


@cache
def _tls() -> SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # it reads many files
