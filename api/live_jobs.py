"""Gauges of the jobs that run now, for `/metrics/jobs`: made anew from the database at every scrape.

A finished job's series are simply absent from the next scrape, so Prometheus marks them stale at once. Nothing is
counted in memory: any number of API processes show the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from jobs.errors import JobsError
from jobs.service import LiveJob
from ppo_engine.stats import FAMILIES, SCALARS
from ppo_engine.stats import Family as KeyFamily

log = structlog.get_logger()


class LiveJobs(Collector):
    """Reads at most every `cache_seconds`, however many scrapers there are."""

    def __init__(self, read: Callable[[], Sequence[LiveJob]], cache_seconds: float = 2.0) -> None:
        self._read = read
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._jobs: Sequence[LiveJob] = ()
        self._read_at: float | None = None

    def describe(self) -> Iterable[Family]:
        """Nothing: registering must not read the database."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families; after a failed read only `ppo_collector_up 0`, so that the scrape itself stays good."""
        try:
            jobs = self._current()
        except JobsError as error:
            log.warning("live_jobs_unreadable", code=error.code)
            yield _up(0)
            return
        yield _up(1)
        yield from families(jobs)

    def _current(self) -> Sequence[LiveJob]:
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= self._cache_seconds:
                self._jobs = self._read()
                self._read_at = time.monotonic()
            return self._jobs


def families(jobs: Sequence[LiveJob]) -> Iterator[Family]:
    """One family per statistic of `ppo_engine.stats`, one series per job that reports it."""
    yield from _facts(jobs)
    for metric in SCALARS.values():
        family = GaugeMetricFamily(metric.prometheus_name, _help(metric.help, metric.unit), labels=["job_id"])
        for job in jobs:
            if metric.key in job.scalars:
                family.add_metric([job.job_id], job.scalars[metric.key])
        yield family
    yield from (_components(family, jobs) for family in FAMILIES)


def _facts(jobs: Sequence[LiveJob]) -> Iterator[Family]:
    info = InfoMetricFamily("ppo_job", "Names of running jobs; join it on job_id.", labels=["job_id"])
    step = GaugeMetricFamily("ppo_job_step", "Last finished step.", labels=["job_id"])
    updated = GaugeMetricFamily(
        "ppo_job_update_timestamp_seconds", "When the job last reported, Unix time.", labels=["job_id"]
    )
    for job in jobs:
        info.add_metric([job.job_id], {"name": job.name})
        step.add_metric([job.job_id], job.step)
        updated.add_metric([job.job_id], job.update_time.timestamp())
    yield from (info, step, updated)


def _components(keys: KeyFamily, jobs: Sequence[LiveJob]) -> Family:
    text = _help(keys.metric.help, keys.metric.unit)
    family = GaugeMetricFamily(keys.prometheus_name, text, labels=["job_id", "component"])
    for job in jobs:
        for key, value in job.scalars.items():
            component = keys.component(key)
            if component is not None:
                family.add_metric([job.job_id, component], value)
    return family


def _help(text: str, unit: str) -> str:
    return text if unit == "1" else f"{text} Unit: {unit}."


def _up(value: int) -> Family:
    return GaugeMetricFamily("ppo_collector_up", "Whether the database could be read for this scrape.", value=value)
