"""One attempt of one job: from the claim to the row that ends it. The only writer of the job meanwhile."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial

from jobs import lifecycle
from jobs.db import Database
from jobs.errors import LeaseLost, Unavailable
from jobs.lifecycle import Claim, Inherited
from ppo_engine.inheritance import is_inherited
from worker import run_files
from worker.engine_log import EngineLog
from worker.gauges import Gauges
from worker.inheritance import Gone, take_over
from worker.lease import LeaseKeeper
from worker.oom import oom_kills
from worker.outcome import Reason, Seen, Verdict, parent_gone, start_failed, verdict
from worker.pace import Pace
from worker.process import EngineProcess, Exit, ProtocolError, start_process
from worker.recorder import Recorder
from worker.settings import WorkerSettings
from worker.shutdown import Shutdown
from worker.spare import Spare

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_DUMP_SECONDS = 1.0
_ANSWER_SECONDS = 60.0
"""A waiting engine begins at once; one that was still importing when it was taken needs seconds."""


class Supervisor:
    """Starts the engine, has what it says recorded, keeps the lease, stops it when asked, and judges how it ended."""

    def __init__(
        self,
        claim: Claim,
        *,
        claimed_at: float,
        db: Database,
        settings: WorkerSettings,
        gauges: Gauges,
        shutdown: Shutdown,
        spare: Spare | None = None,
    ) -> None:
        """`claimed_at`: `worker.lease.now()` just before the claim was sent. `spare`: where a process may wait."""
        self._claim = claim
        self._settings = settings
        self._gauges = gauges
        self._shutdown = shutdown
        self._spare = spare
        self._unanswered = False
        """The engine was a waiting process, and has not said yet that it began."""
        self._run_dir = settings.run_dir(claim.lease.job_id)
        self._engine: EngineProcess | None = None
        self._reason: Reason | None = None
        self._detail = ""
        self._deadline = float("inf")
        """When the engine is killed, on the monotonic clock."""
        self._pace = Pace(
            started_at=time.monotonic(),
            max_runtime_seconds=claim.spec.resources.max_runtime_seconds,
            spent_seconds=claim.spent_seconds,
            loading_seconds=settings.loading_seconds,
            silence_seconds=settings.silence_seconds,
            grace_seconds=settings.grace_seconds,
        )
        self.keeper = LeaseKeeper(
            partial(lifecycle.heartbeat, db, claim.lease, lease_seconds=settings.lease_seconds),
            claimed_at=claimed_at,
            heartbeat_seconds=settings.heartbeat_seconds,
            fence_seconds=settings.fence_seconds,
            on_loss=self._kill_engine,
            observe=gauges.heartbeat,
        )
        self._recorder = Recorder(
            claim, db=db, run_dir=self._run_dir, keeper=self.keeper, settings=settings, shutdown=shutdown
        )

    def run(self) -> None:
        """Supervise to the end. Never raises: a slot must come back."""
        job_id = self._claim.lease.job_id
        try:
            with self.keeper:
                judged = self._attempt()
                self._recorder.settle(judged)
            self._count(judged.ending, judged.code)
        except LeaseLost:
            log.warning("%s: the lease was lost; nothing more is written", job_id)
            self._count("lost", "lease_lost")
        except Unavailable as error:
            log.warning("%s: left to the reaper, the database is away: %s", job_id, error)
            self._count("lost", "unavailable")
        except Exception:
            log.exception("%s: the supervisor failed", job_id)
            self._count("lost", "supervisor")

    def _attempt(self) -> Verdict:
        if self._claim.inherited is not None and self._claim.checkpoint is None:
            try:
                self._take_over(self._claim.inherited)
            except Gone as error:
                return parent_gone(error, self._claim.lease.attempt)
            except OSError as error:
                log.exception("%s: a checkpoint cannot be taken over", self._claim.lease.job_id)
                return start_failed(error, self._claim.lease.attempt)
        killed_before = oom_kills()
        for spare in (self._spare, None):
            try:
                engine, engine_log = self._start_engine(spare)
            except OSError as error:
                log.exception("%s: the engine cannot be started", self._claim.lease.job_id)
                return start_failed(error, self._claim.lease.attempt)
            try:
                self._watch(engine)
            finally:
                exit_ = engine.close()
            if not self._unanswered or self._end_reason() is not None:
                break
            # It has done nothing yet, so a second process does nothing twice.
            log.warning("%s: the waiting engine did not begin (%s)", self._claim.lease.job_id, exit_)
        return verdict(self._seen(exit_, engine_log, oom_killed=oom_kills() > killed_before))

    def _take_over(self, what: Inherited) -> None:
        """Begin with another run's checkpoint as if it were one of this run's own."""
        path, size = take_over(self._settings.run_dir(what.job_id), self._run_dir, what)
        self._claim = replace(self._claim, checkpoint=path, kept=(*self._claim.kept, path))
        self._recorder.record_inheritance(self._claim, size)

    def _start_engine(self, spare: Spare | None) -> tuple[EngineProcess, EngineLog]:
        self.keeper.require()
        attempt = self._claim.lease.attempt
        run_files.prepare(self._run_dir, self._claim.config, attempt=attempt, kept=self._claim.kept)
        self.keeper.require()
        engine_log = EngineLog(
            self._run_dir.log(attempt),
            max_bytes=self._settings.engine_log_bytes,
            secrets=self._settings.engine_secrets(),
        )
        threads = self._claim.spec.resources.threads or self._settings.threads_per_engine
        arguments = self._settings.run_arguments(
            self._run_dir,
            attempt=attempt,
            checkpoint=self._claim.checkpoint,
            threads=threads,
            parts=self._claim.parts,
        )
        if self._claim.inherited is not None:
            arguments += [word for part in self._claim.inherited.anew for word in ("--anew", part)]
        words = ["run", *arguments]
        engine = spare.take(words, engine_log) if spare is not None else None
        self._unanswered = engine is not None
        self._pace.begin(time.monotonic())
        if engine is None:
            command = [*self._settings.engine_command, *words]
            engine = start_process(command, self._settings.engine_env(threads), engine_log)
        self._engine = engine
        self._gauges.started(again=self._claim.lease.attempt > 1)
        return engine, engine_log

    def _watch(self, engine: EngineProcess) -> None:
        """Have events recorded until the engine has ended, ending it where it must be."""
        while not engine.ended():
            # Here and not only in `on_loss`, which may have come before there was an engine to kill.
            if self.keeper.fenced:
                engine.kill()
            try:
                self._listen(engine)
            except ProtocolError as error:
                self._reason, self._detail = self._reason or Reason.PROTOCOL, str(error)
                return
            if self.keeper.lost:
                raise LeaseLost("the job is another attempt's")
            self._decide(engine, time.monotonic())

    def _listen(self, engine: EngineProcess) -> None:
        for event in engine.read(_TICK_SECONDS):
            self._unanswered = False
            self._recorder.record(event)
            self._pace.hear(event, time.monotonic())
        self._recorder.record_phase()

    def _decide(self, engine: EngineProcess, now: float) -> None:
        """Stop an engine that somebody wants stopped, end one that hangs, kill one whose time is up."""
        wish = self._wish()
        if wish is not None:
            self._ask_to_stop(engine, wish, now)
        if self._shutdown.asked:
            self._ask_to_stop(engine, Reason.SHUTDOWN, now)
        if self._pace.over_time(now):
            self._ask_to_stop(engine, Reason.MAX_RUNTIME, now, f"{self._pace.max_runtime_seconds:.0f} s")
        if self._recorder.final is not None:
            self._deadline = min(self._deadline, now + self._settings.grace_seconds)
        elif self._unanswered:
            if self._pace.silent_seconds(now) > _ANSWER_SECONDS:
                engine.kill()
        elif self._reason is None and self._pace.silent_too_long(now):
            self._end_hang(engine, now)
        if now > self._deadline or self._shutdown.urgent:
            engine.kill()

    def _wish(self) -> Reason | None:
        """What the owner wants of the run now. One to be stopped first makes a step: it must end with a checkpoint."""
        wishes = self.keeper.wishes
        if wishes.cancel:
            return Reason.CANCEL
        if wishes.stop:
            return Reason.STOP if self._recorder.step > 0 else None
        return Reason.PAUSE if wishes.pause else None

    def _ask_to_stop(self, engine: EngineProcess, reason: Reason, now: float, detail: str = "") -> None:
        """The first reason sends the signal and starts the clock; a later one changes neither."""
        if self._reason is not None:
            return
        log.info("%s: stopping the engine: %s", self._claim.lease.job_id, reason)
        self._reason, self._detail = reason, detail
        self._deadline = self._pace.stop_by(now)
        engine.terminate()

    def _end_hang(self, engine: EngineProcess, now: float) -> None:
        self._reason, self._detail = Reason.HUNG, f"{self._pace.silence_limit_seconds:.0f} s"
        self._deadline = now + _DUMP_SECONDS
        engine.dump_stacks()

    def _kill_engine(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    def _seen(self, exit_: Exit, engine_log: EngineLog, *, oom_killed: bool) -> Seen:
        return Seen(
            attempt=self._claim.lease.attempt,
            exit=exit_,
            final=self._recorder.final,
            guard=self._recorder.guard,
            reason=self._end_reason(),
            detail=self._detail,
            phase=self._recorder.phase,
            step=self._recorder.step,
            saved_step=self._recorder.saved_step,
            resumed=self._claim.checkpoint is not None and not is_inherited(self._claim.checkpoint),
            oom_killed=oom_killed,
            microbatch_size=self._claim.config.microbatch_size,
            half_microbatch_size=None if self._claim.microbatch_size else self._claim.config.half_microbatch_size,
            can_split=self._claim.microbatch_size is None and self._claim.config.responses_per_process > 1,
            log_tail=engine_log.tail(),
        )

    def _end_reason(self) -> Reason | None:
        if self.keeper.fenced:
            return Reason.FENCED
        # The owner's cancel outranks what came first and would let the job live on.
        mild = self._reason in (Reason.SHUTDOWN, Reason.STOP, Reason.PAUSE)
        return Reason.CANCEL if self.keeper.wishes.cancel and mild else self._reason

    def _count(self, outcome: str, reason: str) -> None:
        self._gauges.attempts.labels(outcome, reason).inc()
