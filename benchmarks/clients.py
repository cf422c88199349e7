"""Clients of a front door: threads with a kept connection each, that measure every answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Request = Callable[[int], tuple[str, str, bytes | None]]
"""Method, path and body of the n-th request."""


@dataclass
class Load:
    """What some clients measured."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency that this share of the answers did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def drive(
    port: int, request: Request, *, clients: int, each: int, headers: Mapping[str, str], expect: int = 200
) -> Load:
    """Let `clients` send `each` requests one after the other, all at the same time."""
    load, ready = Load(), threading.Barrier(clients + 1)
    failures: list[str] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.connect()
        ready.wait()
        for turn in range(each):
            method, path, body = request(number * each + turn)
            started = time.perf_counter()
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            data = answer.read()
            load.latencies.append(time.perf_counter() - started)
            load.bodies.append(data)
            if answer.status != expect:
                failures.append(f"{answer.status}: {data[:500]!r}")
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    load.seconds = time.perf_counter() - started
    if failures:
        raise RuntimeError(failures[0])
    return load
