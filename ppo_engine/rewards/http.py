"""A reward server as a component: batches are posted while the rest of the responses is still being generated.

Protocol: POST {"prompts": [...], "responses": [...], "records": [...]}, all of the same length, is answered by
{"scores": [...]}: for each a number, or null where there is none. What a server says beyond that is never logged.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from ppo_engine.config import HTTPReward
from ppo_engine.egress import Egress
from ppo_engine.errors import RewardFailed, RewardUnavailable
from ppo_engine.rewards.breaker import CircuitBreaker
from ppo_engine.rewards.exchange import Exchange, Unscored
from ppo_engine.rewards.wire import Refused, TryAgain, check_status, read_scores, request_body

MAX_ANSWER_BYTES = 1 << 20
"""4096 scores of 25 digits are a tenth of this."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0

Batch = list[tuple[int, Exchange]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is: the URL, and its host and port."""

    url: httpx.URL
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Place:
        """Raises ValueError for what is not an http(s) URL with a host."""
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise ValueError(f"not a URL: {error}") from error
        if not url.host:
            raise ValueError("the URL has no host")
        return cls(url, url.host, url.port or (443 if url.scheme == "https" else 80))

    def at(self, address: str) -> httpx.URL:
        """The URL with an IP address for the host."""
        return self.url.copy_with(host=address, fragment=None)


class RewardServer:
    """Scores by asking a server; one circuit breaker for the whole run."""

    def __init__(self, spec: HTTPReward, egress: Egress) -> None:
        """Look the server up once, so that a wrong name or a forbidden one is known before training.

        Raises:
            ValueError: not a usable URL.
            RewardHostForbidden: the operator does not let this host be called.
            RewardUnavailable: its name cannot be looked up.
        """
        self.spec, self.egress, self.place = spec, egress, Place.of(spec.url)
        self.breaker = CircuitBreaker()
        self.tls = httpx.create_ssl_context() if self.place.url.scheme == "https" else False  # it reads many files
        try:
            _run(self.addresses()).result()
        except TryAgain as error:
            raise RewardUnavailable(str(error)) from error

    @property
    def label(self) -> str:
        """The server in messages: neither path nor query, which may hold secrets."""
        return f"the reward server at {self.place.host}:{self.place.port}"

    def open(self, count: int) -> RequestSession:
        """Begin a batch."""
        return RequestSession(self, count)

    async def addresses(self) -> list[str]:
        """The checked addresses of the host."""
        place, loop = self.place, asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise TryAgain(f"the host {place.host} cannot be looked up: {type(error).__name__}") from error
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        self.egress.check(place.host, place.port, addresses)
        return addresses

    def headers(self) -> dict[str, str]:
        """For every request. The operator's token goes only to hosts that the operator named."""
        headers = {
            "Host": self.place.url.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        if self.egress.token is not None and self.egress.names(self.place.host, self.place.port):
            headers["Authorization"] = f"Bearer {self.egress.token}"
        return headers


class RequestSession:
    """One batch of responses: a request for every `batch_size` of them as they come."""

    def __init__(self, server: RewardServer, count: int) -> None:
        self._server, self._count = server, count
        self._waiting: Batch = []
        self._requests: list[tuple[list[int], Future[list[Any]]]] = []
        spec = server.spec
        self._running: set[asyncio.Task[Any]] = set()
        self._gate = asyncio.Semaphore(spec.concurrency)
        # Proxies of the environment would look the host up again; redirects would lead somewhere unchecked.
        self._client = httpx.AsyncClient(
            verify=server.tls,
            trust_env=False,
            follow_redirects=False,
            timeout=spec.timeout_seconds,
            limits=httpx.Limits(max_connections=spec.concurrency),
        )

    def add(self, index: int, exchange: Exchange) -> None:
        """Take one exchange; a full batch is sent at once."""
        self._waiting.append((index, exchange))
        if len(self._waiting) == self._server.spec.batch_size:
            self._send()

    def close(self) -> list[Any]:
        """Wait for all answers.

        Raises:
            RewardFailed: an answer that is not one value per response.
            RewardHostForbidden: the host has moved to an address that may not be called.
        """
        if self._waiting:
            self._send()
        scores: list[Any] = [None] * self._count
        try:
            for indices, request in self._requests:
                for index, score in zip(indices, request.result(), strict=True):
                    scores[index] = score
        finally:
            self.abandon()
        return scores

    def abandon(self) -> None:
        """Cancel what is under way and close the connections."""
        for _, request in self._requests:
            request.cancel()
        _run(self._end()).result()

    async def _end(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.aclose()

    def _send(self) -> None:
        batch, self._waiting = self._waiting, []
        self._requests.append(([index for index, _ in batch], _run(self._score([item for _, item in batch]))))

    async def _score(self, exchanges: list[Exchange]) -> list[Any]:
        """One value per exchange; Unscored for all of them when the request failed for good."""
        if task := asyncio.current_task():
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        async with self._gate:
            return await self._guarded(exchanges)

    async def _guarded(self, exchanges: list[Exchange]) -> list[Any]:
        server = self._server
        if not server.breaker.allows():
            count = server.breaker.failures
            return [Unscored(f"{server.label} is left alone after {count} failed requests", True)] * len(exchanges)
        try:
            scores = await self._request(exchanges)
        except (TryAgain, Refused) as error:
            server.breaker.failed()
            return [Unscored(f"{server.label}: {error}", isinstance(error, TryAgain))] * len(exchanges)
        server.breaker.succeeded()
        return scores

    async def _request(self, exchanges: Sequence[Exchange]) -> list[Any]:
        """As many attempts as the spec allows, with pauses that double, half of each by chance."""
        body = request_body(exchanges)
        for attempt in range(self._server.spec.retries + 1):
            try:
                async with asyncio.timeout(self._server.spec.timeout_seconds):
                    answer = await self._attempt(body)
                return read_scores(self._server.label, answer, len(exchanges))
            except (TryAgain, TimeoutError) as error:
                last = attempt == self._server.spec.retries
                failure = error if isinstance(error, TryAgain) else TryAgain("no answer in time")
                if last:
                    raise TryAgain(f"{failure} ({attempt + 1} tries)") from error
                await asyncio.sleep(self._pause(attempt, failure))
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, attempt: int, failure: TryAgain) -> float:
        """Seconds before the next attempt: at least what the server asked for, but not beyond the timeout."""
        longest: float = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
        share = 0.5 + secrets.randbelow(1000) / 2000  # not from the generators that make the run reproducible
        return max(longest * share, min(failure.pause_seconds, self._server.spec.timeout_seconds))

    async def _attempt(self, body: bytes) -> bytes:
        """Post once, to the first address that takes the connection."""
        refusal: Exception | None = None
        for address in await self._server.addresses():
            try:
                return await self._post(self._server.place.at(address), body)
            except httpx.ConnectError as error:
                refusal = error
            except httpx.TransportError as error:
                raise TryAgain(f"the connection failed: {type(error).__name__}") from error
        raise TryAgain(f"no connection ({str(refusal)[:100]})") from refusal

    async def _post(self, url: httpx.URL, body: bytes) -> bytes:
        server = self._server
        # TLS: the name is sent, and the certificate checked against it, although the URL has the address.
        names = {"sni_hostname": server.place.host}
        async with self._client.stream("POST", url, content=body, headers=server.headers(), extensions=names) as answer:
            check_status(answer)
            chunks = bytearray()
            async for chunk in answer.aiter_raw():
                chunks += chunk
                if len(chunks) > MAX_ANSWER_BYTES:
                    raise RewardFailed(f"{server.label} answered with more than {MAX_ANSWER_BYTES} bytes")
            return bytes(chunks)


def _run(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all requests, in a thread that does not keep the process alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward-requests", daemon=True).start()
    return loop
