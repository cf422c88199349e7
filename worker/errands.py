"""Errands of the front door, one at a time beside the job slots, each in an engine process of its own."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs import errand_work
from jobs.db import Database
from jobs.errand_work import ErrandClaim
from jobs.errors import LeaseLost, Unavailable
from jobs.views import JobError
from ppo_engine.errands import ErrandKind
from ppo_engine.events import Answered, Event, Failed, PhaseEntered
from worker.engine_log import EngineLog
from worker.gauges import Gauges
from worker.lease import LeaseKeeper, now
from worker.oom import oom_kills
from worker.outcome import Reason, Seen, start_failed, verdict
from worker.process import EngineProcess, Exit, ProtocolError, start_process
from worker.settings import WorkerSettings
from worker.shutdown import Shutdown
from worker.spare import Spare

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
_WRITE_PAUSE_SECONDS = 0.5


class Cancelled(Exception):
    """The owner no longer wants the errand, which has been ended so."""


class ErrandDesk:
    """Takes the errands that wait, one after the other."""

    def __init__(
        self,
        *,
        db: Database,
        settings: WorkerSettings,
        gauges: Gauges,
        shutdown: Shutdown,
        spare: Spare | None = None,
    ) -> None:
        """`spare`: where a process may wait; somebody who waits for an answer needs it more than a job does."""
        self._db = db
        self._spare = spare
        self._settings = settings
        self._gauges = gauges
        self._shutdown = shutdown

    def work(self) -> None:
        """Do errands until none waits."""
        while self.do_next():
            pass

    def do_next(self) -> bool:
        """Do the errand that waits longest; whether there was one. Never raises because of an errand."""
        if self._shutdown.asked:
            return False
        settings, claimed_at = self._settings, now()
        claim = errand_work.claim_errand(
            self._db,
            worker_id=settings.worker_id,
            queues=settings.queue_names,
            lease_seconds=settings.lease_seconds,
        )
        if claim is None:
            return False
        errand = ErrandTry(
            claim,
            claimed_at=claimed_at,
            db=self._db,
            settings=settings,
            shutdown=self._shutdown,
            spare=self._spare,
        )
        self._gauges.errands.labels(claim.kind, errand.run()).inc()
        return True


class ErrandTry:
    """One try of one errand: starts the engine, keeps the lease, ends the engine in time, writes what came of it."""

    def __init__(
        self,
        claim: ErrandClaim,
        *,
        claimed_at: float,
        db: Database,
        settings: WorkerSettings,
        shutdown: Shutdown,
        spare: Spare | None = None,
    ) -> None:
        self._claim = claim
        self._spare = spare
        self._unanswered = False
        """The engine was a waiting process, and has not said yet that it began."""
        self._db = db
        self._settings = settings
        self._shutdown = shutdown
        self._engine: EngineProcess | None = None
        self._answer: Answered | None = None
        self._failed: Failed | None = None
        self._reason: Reason | None = None
        self._detail = ""
        self._keeper = LeaseKeeper(
            partial(errand_work.beat_errand, db, claim, lease_seconds=settings.lease_seconds),
            claimed_at=claimed_at,
            heartbeat_seconds=settings.heartbeat_seconds,
            fence_seconds=settings.fence_seconds,
            on_loss=self._kill,
        )

    def run(self) -> str:
        """Do it to the end; returns the code of what went wrong, or nothing. Never raises."""
        try:
            with self._keeper:
                return self._settle(self._work())
        except Cancelled:
            log.info("%s: its owner cancelled it", self._claim.id)
            return "cancelled"
        except (LeaseLost, Unavailable) as error:
            log.warning("%s: left to another worker: %s", self._claim.id, error)
            return error.code
        except Exception:
            log.exception("%s: the errand was dropped", self._claim.id)
            return "supervisor"

    def _work(self) -> JobError | None:
        """Have the engine do it; returns what went wrong."""
        killed_before = oom_kills()
        deadline = time.monotonic() + self._settings.errand_limit_seconds(self._claim.kind)
        with TemporaryDirectory(prefix="ppo-errand-") as folder:
            for spare in (self._spare, None):
                try:
                    engine, engine_log = self._start(Path(folder), spare)
                except OSError as error:
                    return start_failed(error, self._claim.tries).error
                try:
                    self._listen(engine, deadline)
                finally:
                    exit_ = engine.close()
                if not self._unanswered or self._reason is not None:
                    break
                log.warning("%s: the waiting engine did not begin (%s)", self._claim.id, exit_)
        return self._judge(exit_, engine_log.tail(), oom_killed=oom_kills() > killed_before)

    def _start(self, folder: Path, spare: Spare | None) -> tuple[EngineProcess, EngineLog]:
        settings, request = self._settings, folder / "request.json"
        request.write_text(json.dumps(self._claim.request), encoding="utf-8")
        engine_log = EngineLog(
            folder / "engine.log", max_bytes=settings.engine_log_bytes, secrets=settings.engine_secrets()
        )
        words = ["errand", *settings.errand_arguments(self._claim.kind, request)]
        engine = spare.take(words, engine_log) if spare is not None else None
        self._unanswered = engine is not None
        if engine is None:
            engine = start_process(
                [*settings.engine_command, *words], settings.engine_env(settings.threads_per_engine), engine_log
            )
        self._engine = engine
        return engine, engine_log

    def _listen(self, engine: EngineProcess, deadline: float) -> None:
        """Read what the engine says until it has ended, ending it where it must be."""
        while not engine.ended():
            try:
                for event in engine.read(_TICK_SECONDS):
                    self._hear(event)
            except ProtocolError as error:
                self._reason, self._detail = Reason.PROTOCOL, str(error)
                return
            if self._keeper.lost:
                raise LeaseLost("the errand is another worker's")
            if self._keeper.wishes.cancel:
                self._reason = Reason.CANCEL
                engine.kill()
            elif self._keeper.fenced or self._shutdown.asked:
                self._reason = Reason.SHUTDOWN
                engine.kill()
            elif time.monotonic() > deadline:
                self._reason = Reason.MAX_RUNTIME
                engine.kill()

    def _hear(self, event: Event) -> None:
        self._unanswered = False
        match event:
            case PhaseEntered():
                return
            case Answered():
                self._answer = event
            case Failed():
                self._failed = event
            case _:
                raise ProtocolError(f"an errand has no event `{event.event}`")

    def _judge(self, exit_: Exit, log_tail: str, *, oom_killed: bool) -> JobError | None:
        if self._answer is not None and self._reason is not Reason.PROTOCOL:
            return None
        if self._reason is Reason.CANCEL:
            self._write(partial(errand_work.end_cancelled, self._db, self._claim))
            raise Cancelled
        if self._reason is Reason.SHUTDOWN:
            self._write(partial(errand_work.return_errand, self._db, self._claim))
            raise LeaseLost("it was given back")
        if self._reason is Reason.MAX_RUNTIME:
            kind = self._claim.kind
            name = "PPO_VERIFY_SECONDS" if kind == ErrandKind.VERIFY_RESUME else "PPO_ERRAND_SECONDS"
            return JobError(
                code="errand_too_long",
                category="capacity",
                message=f"It took longer than {self._settings.errand_limit_seconds(kind):.0f} s.",
                suggestion=f"Ask for less at once, or have the operator raise {name}.",
                attempt=self._claim.tries,
                log_tail=log_tail,
            )
        seen = Seen(
            attempt=self._claim.tries,
            exit=exit_,
            final=self._failed,
            reason=self._reason,
            detail=self._detail,
            oom_killed=oom_killed,
            log_tail=log_tail,
        )
        return verdict(seen).error

    def _settle(self, error: JobError | None) -> str:
        db, claim, code = self._db, self._claim, "" if error is None else error.code
        if error is None and self._answer is not None:
            self._write(partial(errand_work.answer_errand, db, claim, self._answer.answer))
        elif error is not None:
            self._write(partial(errand_work.fail_errand, db, claim, error))
        log.info("%s: %s try %d %s", claim.id, claim.kind, claim.tries, code or "answered")
        return code

    def _write(self, write: Callable[[], None]) -> None:
        """Write, and again while the database is away; the lease bounds it."""
        while True:
            try:
                write()
                return
            except Unavailable:
                if self._keeper.lost or self._keeper.fenced or self._shutdown.asked:
                    raise
                time.sleep(_WRITE_PAUSE_SECONDS)

    def _kill(self) -> None:
        if self._engine is not None:
            self._engine.kill()
