"""Numbers for `/metrics`: the process's own requests, calls and streams, and the service's, read from the database.

Every Meters has a registry of its own: two apps in one process share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jobs.dispatch import Backlog
from jobs.errors import JobsError
from jobs.service import WorkerRow
from jobs.states import JobState

log = structlog.get_logger()

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


# A `_created` series beside every counter doubles the scrape and tells Prometheus nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Meters:
    """Counters of both doors, in one registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.http_requests = Counter(
            "ppo_http_requests_total",
            "HTTP requests by route template and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.http_seconds = Histogram(
            "ppo_http_request_duration_seconds",
            "Time to the last byte of an HTTP response; streams are left out.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.grpc_handled = Counter(
            "ppo_grpc_handled_total", "gRPC calls by method and code.", ["method", "code"], registry=self.registry
        )
        self.grpc_seconds = Histogram(
            "ppo_grpc_handling_duration_seconds",
            "Time to the end of a gRPC call; streams are left out.",
            ["method"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.streams = Gauge("ppo_open_streams", "Followers connected now, by door.", ["door"], registry=self.registry)


class ServiceState(Collector):
    """Jobs by state, queues, workers and webhooks, read from the database at every scrape."""

    def __init__(
        self,
        count_by_state: Callable[[], dict[JobState, int]],
        queue_ages: Callable[[], dict[str, float]],
        workers: Callable[[], list[WorkerRow]],
        backlog: Callable[[], Backlog],
    ) -> None:
        self._count_by_state = count_by_state
        self._queue_ages = queue_ages
        self._workers = workers
        self._backlog = backlog

    def describe(self) -> list[Metric]:
        """Nothing: registering must not read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges, or only `ppo_collector_up 0` where the database is away."""
        up = GaugeMetricFamily("ppo_collector_up", "Whether the database could be read for this scrape.")
        try:
            counts, ages, workers = self._count_by_state(), self._queue_ages(), self._workers()
            backlog = self._backlog()
        except JobsError as error:
            log.warning("service_state_unreadable", code=error.code)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _gauges(counts, workers)
        yield _ages(ages)
        yield GaugeMetricFamily(
            "ppo_webhook_waiting_messages", "Webhook messages not delivered yet.", value=backlog.messages
        )
        overdue = "How long the webhook message that is due longest has been left; near 0 while a sender keeps up."
        yield GaugeMetricFamily("ppo_webhook_overdue_seconds", overdue, value=backlog.overdue_seconds)


def _gauges(counts: dict[JobState, int], workers: list[WorkerRow]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("ppo_jobs", "Jobs by state.", labels=["state"])
    for state in JobState:
        jobs.add_metric([state.value], counts.get(state, 0))
    yield jobs
    yield GaugeMetricFamily("ppo_workers", "Workers alive.", value=len(workers))
    slots = GaugeMetricFamily("ppo_slots", "Jobs that the workers alive can run at once, by use.", labels=["use"])
    busy = sum(worker.busy for worker in workers)
    slots.add_metric(["busy"], busy)
    slots.add_metric(["free"], sum(worker.slots for worker in workers) - busy)
    yield slots


def _ages(ages: dict[str, float]) -> Metric:
    text = "How long the job that waits longest could have started, by queue; no series where none waits."
    oldest = GaugeMetricFamily("ppo_queue_oldest_seconds", text, labels=["queue"])
    for queue, seconds in ages.items():
        oldest.add_metric([queue], seconds)
    return oldest
