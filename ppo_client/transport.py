"""HTTP with patience: retries with backoff where a retry is safe and can help.

Every request of this client may be repeated: reads have no effect, submit has an idempotency key, cancel is idempotent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from ppo_client import errors

_RETRYABLE = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to wait; a longer Retry-After than `max_wait_seconds` is handed to the caller."""

    attempts: int = 5
    first_wait_seconds: float = 0.25
    max_wait_seconds: float = 30.0

    def wait_seconds(self, attempt: int, wanted: float | None) -> float:
        """Pause after failed attempt `attempt` (from 1): what the server wants, else doubling with jitter."""
        if wanted is not None:
            return wanted
        backoff = self.first_wait_seconds * 2 ** (attempt - 1)
        return float(min(backoff, self.max_wait_seconds) * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)


class Transport:
    """One connection pool to one service."""

    def __init__(self, url: str, key: str | None, retry: RetryPolicy, timeout_seconds: float) -> None:
        headers = {"User-Agent": "ppo-client", **({"Authorization": f"Bearer {key}"} if key else {})}
        # A read may take long on a busy machine; a connect may not: the service is there or it is not.
        timeout = httpx.Timeout(timeout_seconds, connect=5.0)
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise errors.UnusableUrl(f"`{self.url}` is no URL of a service: write http://HOST:PORT or https://HOST")
        self.retry = retry
        # A proxy of the environment cannot reach this machine's loopback.
        loopback = httpx.URL(self.url).host in {"127.0.0.1", "::1", "localhost"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=not loopback)

    def close(self) -> None:
        self._http.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_seconds: float | None = None,
    ) -> Any:
        """The decoded JSON of the answer; None where it has no body.

        `content` goes out as it is instead of a `body`; it must be one that can be iterated again, for a retry.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no answer after all attempts.
            ProtocolError: an answer that is not JSON.
        """
        request = self._http.build_request(method, path, params=params, json=body, content=content, headers=headers)
        _set_patience(request, read_timeout_seconds)
        response = self._send(request, stream=False)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise errors.ProtocolError(f"{self.url} did not answer with JSON: is it the service's URL?") from error

    def empty(self, method: str, path: str) -> None:
        """A request whose answer has no body; errors as for `json`."""
        self._send(self._http.build_request(method, path), stream=False)

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_seconds: float | None = None,
    ) -> Iterator[httpx.Response]:
        """An open answer whose body is still to be read; opening is retried, reading is not."""
        request = self._http.build_request("GET", path, params=params, headers=headers)
        _set_patience(request, read_timeout_seconds)
        response = self._send(request, stream=True)
        try:
            yield response
        finally:
            response.close()

    def _send(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        for attempt in range(1, self.retry.attempts + 1):
            last = attempt == self.retry.attempts
            try:
                response = self._http.send(request, stream=stream)
            except httpx.TransportError as error:
                if last:
                    raise self._unreachable(error) from error
                time.sleep(self.retry.wait_seconds(attempt, None))
                continue
            if response.status_code < 400:
                return response
            response.read()
            failure = errors.from_response(response)
            wait = self.retry.wait_seconds(attempt, failure.retry_after_seconds)
            if last or response.status_code not in _RETRYABLE or wait > self.retry.max_wait_seconds:
                raise failure
            time.sleep(wait)
        raise AssertionError("a policy has at least one attempt")

    def _unreachable(self, error: httpx.TransportError) -> errors.ServiceUnreachable:
        return errors.ServiceUnreachable(
            f"no answer from {self.url} ({str(error) or type(error).__name__}).\n"
            "  Is the service running? `ppo up` starts one here; --url or PPO_URL names another."
        )


def _set_patience(request: httpx.Request, read_timeout_seconds: float | None) -> None:
    """Bear silence for longer or shorter than usual."""
    if read_timeout_seconds is not None:
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": read_timeout_seconds}
