"""What one worker process shows to Prometheus: its slots, leases, engines and its own pulse. Nothing per job."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server

_HEARTBEAT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Gauges:
    """The metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._slots = self._gauge("ppo_worker_slots", "Jobs this worker can run at once.")
        self._busy = self._gauge("ppo_worker_busy_slots", "Jobs this worker runs now.")
        self._lease_age = self._gauge(
            "ppo_worker_lease_age_seconds", "Age of the oldest lease held: time since its last heartbeat was sent."
        )
        self._last_poll = self._gauge(
            "ppo_worker_last_poll_timestamp_seconds", "When this worker last asked the database for work."
        )
        self._engine_starts = self._counter("ppo_worker_engine_starts", "Engines started.")
        self._engine_restarts = self._counter("ppo_worker_engine_restarts", "Engines started for a later attempt.")
        self.attempts = Counter(
            "ppo_worker_attempts",
            "Attempts ended here, by what became of the job and the error's code.",
            ["outcome", "reason"],
            registry=self.registry,
        )
        self.errands = Counter(
            "ppo_worker_errands",
            "Errands ended here, by kind and the error's code; none where it was answered.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self._heartbeat_seconds = Histogram(
            "ppo_worker_heartbeat_seconds",
            "Duration of the heartbeats that succeeded.",
            buckets=_HEARTBEAT_BUCKETS,
            registry=self.registry,
        )
        self._heartbeat_failures = self._counter("ppo_worker_heartbeat_failures", "Heartbeats that failed.")
        self.reaped = self._counter("ppo_worker_reaped_jobs", "Jobs of lost workers that this worker returned.")

    def follow(self, *, slots: int, busy: Callable[[], float], oldest_lease_seconds: Callable[[], float]) -> None:
        """Show the state of the slots, asked for at each scrape."""
        self._slots.set(slots)
        self._busy.set_function(busy)
        self._lease_age.set_function(oldest_lease_seconds)

    def polled(self) -> None:
        """Note that the database was asked for work."""
        self._last_poll.set(time.time())

    def heartbeat(self, seconds: float | None) -> None:
        """Note a heartbeat, or with None one that failed."""
        if seconds is None:
            self._heartbeat_failures.inc()
        else:
            self._heartbeat_seconds.observe(seconds)

    def started(self, *, again: bool) -> None:
        """Note the start of an engine."""
        self._engine_starts.inc()
        if again:
            self._engine_restarts.inc()

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve `/metrics` on a thread; returns the port in use and what ends it."""
        server, thread = start_http_server(port, addr=host, registry=self.registry)

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return int(server.server_port), close

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)
