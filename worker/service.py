"""A worker process: slots, Celery, and threads that ask for work, return lost jobs and say that the worker lives."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import suppress
from typing import Any

from celery import Celery, bootsteps, signals

from jobs import errand_work, lifecycle
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.retention import Retention, prune
from worker.app import create_app
from worker.courier import Courier
from worker.errands import ErrandDesk
from worker.gauges import Gauges
from worker.lease import now
from worker.settings import WorkerSettings
from worker.shutdown import Shutdown
from worker.slots import Slots
from worker.spare import Spare
from worker.supervisor import Supervisor
from worker.tasks import add_run_job, wake
from worker.ticker import Ticker

log = logging.getLogger(__name__)

_PRUNE_SECONDS = 3600
_HOUSEKEEPING_SECONDS = 6 * 3600


class Service:
    """All parts of one worker, wired. Made and run once in the main thread of a process."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._db = Database(settings.database_url)
        self._shutdown = Shutdown()
        self._gauges = Gauges()
        self._metrics_url = ""
        self._spare = (
            Spare([*settings.engine_command, "wait"], settings.engine_env(settings.threads_per_engine))
            if settings.warm_engine
            else None
        )
        self._poller = Ticker("poll", self._poll, every_seconds=settings.poll_interval_seconds)
        self._tickers: list[Ticker | Courier] = [
            self._poller,
            Ticker("reap", self._reap, every_seconds=settings.reap_seconds),
            Ticker("presence", self._say_alive, every_seconds=settings.presence_seconds),
            Ticker("audit", self._prune_audit, every_seconds=_PRUNE_SECONDS),
        ]
        if settings.prune_days is not None:
            self._tickers.append(Ticker("prune", self._prune_runs, every_seconds=_HOUSEKEEPING_SECONDS))
        if settings.errands:
            desk = ErrandDesk(
                db=self._db, settings=settings, gauges=self._gauges, shutdown=self._shutdown, spare=self._spare
            )
            self._tickers.append(Ticker("errands", desk.work, every_seconds=settings.errand_poll_seconds))
        if settings.embedded:  # elsewhere the relay sends them
            self._tickers.append(Courier(self._db, settings))
        self._slots = Slots(settings.slots, self._claim, on_free=self._poller.kick)
        self._gauges.follow(
            slots=settings.slots,
            busy=lambda: self._slots.busy,
            oldest_lease_seconds=self._slots.oldest_lease_seconds,
        )
        self._app = create_app(settings)
        add_run_job(self._app, self._slots.run_next)
        self._app.steps["worker"].add(_step(self))

    def run(self) -> int:
        """Work until a signal ends it; returns an exit code when every job is done or given back."""
        settings = self._settings
        port, close_metrics = self._gauges.serve(settings.metrics_host, settings.metrics_port)
        self._metrics_url = f"http://{settings.advertised_host}:{port}/metrics"
        log.info("worker %s serves %s, metrics at %s", settings.worker_id, settings.queues, self._metrics_url)
        # A receiver, even one that does nothing, keeps Celery from setting up logging its own way.
        signals.setup_logging.connect(_leave_as_it_is, weak=False)
        # Celery sends this from its signal handler, each time a signal comes.
        signals.worker_shutting_down.connect(self._on_shutdown, weak=False)
        try:
            return _run_celery(self._app, settings)
        finally:
            self.stop()
            close_metrics()
            self._db.dispose()

    def start(self) -> None:
        """Begin to ask for work. Celery calls it in the main thread before it looks for its broker."""
        # Celery's own handlers of these would wait inside the handler, or start the process anew: all mean SIGTERM.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.getsignal(signal.SIGTERM))
        for ticker in self._tickers:
            ticker.start()

    def stop(self) -> None:
        """Give all jobs back, and end the threads. Does nothing the second time."""
        if not self._shutdown.asked:
            self._shutdown.request()
        self._slots.wait_until_idle()
        for ticker in self._tickers:
            ticker.stop()
        if self._spare is not None:
            self._spare.close()
        with suppress(Unavailable):
            lifecycle.forget_worker(self._db, self._settings.worker_id)

    def _on_shutdown(self, **_: Any) -> None:
        self._shutdown.request()

    def _claim(self) -> Supervisor | None:
        if self._shutdown.asked:
            return None
        sent_at, settings = now(), self._settings
        claim = lifecycle.claim(
            self._db,
            worker_id=settings.worker_id,
            queues=settings.queue_names,
            lease_seconds=settings.lease_seconds,
            limits=settings.limits,
        )
        if claim is None:
            return None
        return Supervisor(
            claim,
            claimed_at=sent_at,
            db=self._db,
            settings=settings,
            gauges=self._gauges,
            shutdown=self._shutdown,
            spare=self._spare,
        )

    def _poll(self) -> None:
        """Find work for free slots.

        Embedded, the process wakes itself through Celery's in-process broker. With a real broker it claims directly, so
        that losing the broker costs a poll interval and never a job.
        """
        found = self._wake_myself() if self._settings.embedded else self._start_jobs()
        if self._spare is not None and not found and self._slots.free and not self._shutdown.asked:
            self._spare.keep()
        self._gauges.polled()

    def _start_jobs(self) -> int:
        started = 0
        while self._slots.start_next():
            started += 1
        return started

    def _wake_myself(self) -> int:
        """Publish no more wake-ups than there are free slots; a job that stays queued is due again at the next poll."""
        if self._shutdown.asked:
            # Celery's blocking loop looks up only when a message comes, or after 2 s, and needs to do so twice to end.
            for _ in range(2):
                wake(self._app, "nobody", self._settings.queue_names[0])
            return 0
        free = self._slots.free
        if free == 0:
            return 0
        due = lifecycle.due_wakeups(self._db, every_seconds=self._settings.poll_interval_seconds)
        mine = [(job_id, queue) for job_id, queue in due if queue in self._settings.queue_names]
        for job_id, queue in mine[:free]:
            wake(self._app, job_id, queue)
        return len(mine)

    def _reap(self) -> None:
        for job_id in lifecycle.reap(self._db):
            log.warning("%s: its worker is lost; the job is returned", job_id)
            self._gauges.reaped.inc()
        errand_work.tidy_errands(self._db)

    def _prune_audit(self) -> None:
        lifecycle.prune_audit(self._db, days=self._settings.audit_days)

    def _prune_runs(self) -> None:
        """Off unless the operator sets an age; any number of workers may do it at once."""
        days = self._settings.prune_days
        if days is None:
            return
        wanted = Retention(days * 86400, keep_best=self._settings.prune_keep_best)
        for found in prune(self._db, self._settings.runs_dir, wanted):
            log.info("%s: removed %s, %d bytes", found.job_id, found.what, found.size_bytes)
            if self._shutdown.asked:
                return

    def _say_alive(self) -> None:
        lifecycle.beat_worker(
            self._db,
            self._settings.worker_id,
            host=socket.gethostname(),
            metrics_url=self._metrics_url,
            slots=self._slots.count,
            busy=self._slots.busy,
            queues=self._settings.queue_names,
            errands=self._settings.errands,
            max_running_jobs=self._settings.max_running_jobs,
        )


def _leave_as_it_is(**_: Any) -> None:
    return


def _step(service: Service) -> type[bootsteps.StartStopStep]:
    """A part of Celery's worker that lives from before the broker is looked for until the pool stops."""

    class WorkerThreads(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.components:Pool",)

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)

        def start(self, _parent: Any) -> None:
            service.start()

        def stop(self, _parent: Any) -> None:
            service.stop()

    return WorkerThreads


def _run_celery(app: Celery, settings: WorkerSettings) -> int:
    """What `celery worker --pool threads` does; returns its exit code."""
    worker = app.Worker(
        hostname=settings.worker_id,
        pool_cls="threads",
        concurrency=settings.slots,
        queues=[queue.name for queue in app.conf.task_queues],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel=logging.INFO,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)
