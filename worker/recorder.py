"""Writes what happens in an attempt to the database, and remembers how far it is."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from jobs import lifecycle
from jobs.db import Database
from jobs.errors import InvalidArgument, LeaseLost, Unavailable
from jobs.lifecycle import Claim
from ppo_engine.events import (
    Answered,
    CheckpointSaved,
    Event,
    Failed,
    Finished,
    GuardTripped,
    Phase,
    PhaseEntered,
    RolledBack,
    Started,
    StepDone,
)
from ppo_engine.rundir import RunDir, checkpoint_step
from worker import run_files
from worker.inheritance import hand_over
from worker.lease import LeaseKeeper
from worker.outcome import Ending, Verdict
from worker.process import ProtocolError
from worker.settings import WorkerSettings
from worker.shutdown import Shutdown

log = logging.getLogger(__name__)

T = TypeVar("T")

_PHASE_SECONDS = 0.5


class Recorder:
    """The pen of one attempt. Its methods raise LeaseLost, and Unavailable only when the worker is shutting down;
    `record` raises ProtocolError on an event that cannot follow what came before it.
    """

    def __init__(
        self,
        claim: Claim,
        *,
        db: Database,
        run_dir: RunDir,
        keeper: LeaseKeeper,
        settings: WorkerSettings,
        shutdown: Shutdown,
    ) -> None:
        self._claim = claim
        self._lease = claim.lease
        self._db = db
        self._run_dir = run_dir
        self._keeper = keeper
        self._settings = settings
        self._shutdown = shutdown
        self.phase: Phase | None = None
        self.saved_step = checkpoint_step(Path(claim.checkpoint)) if claim.checkpoint else None
        """Step of the newest checkpoint that the database knows."""
        self.step = self.saved_step or 0
        self.guard: GuardTripped | None = None
        """The last guard that tripped."""
        self.final: Finished | Failed | None = None
        self._unwritten_phase: PhaseEntered | None = None
        self._next_phase_at = 0.0

    def record(self, event: Event) -> None:
        """Write one event; the last one is kept for the verdict, which is written when the engine has gone."""
        _check(event, step=self.step, steps_total=self._claim.spec.ppo.steps, over=self.final is not None)
        try:
            self._record(event)
        except (InvalidArgument, SQLAlchemyError, OverflowError) as error:
            # Nothing of it was written. Without a word from here the job would wait for its lease to run out.
            raise ProtocolError(
                f"`{event.event}` has a value that cannot be stored ({type(error).__name__})"
            ) from error

    def _record(self, event: Event) -> None:
        match event:
            case Started():
                self._write(partial(lifecycle.record_started, self._db, self._lease, event))
                self.step = event.step
            case PhaseEntered():
                self.phase, self._unwritten_phase = event.phase, event
                self.record_phase()
            case StepDone():
                self._write(partial(lifecycle.record_step, self._db, self._lease, event))
                self.step = event.step
            case CheckpointSaved():
                dropped = self._write(partial(lifecycle.record_checkpoint, self._db, self._lease, event))
                self.saved_step = event.step
                run_files.delete_checkpoints(self._run_dir, dropped)
            case GuardTripped():
                self._write(partial(lifecycle.record_guard, self._db, self._lease, event))
                self.guard = event
            case RolledBack():
                void = self._write(partial(lifecycle.record_rollback, self._db, self._lease, event))
                forks = self._write(partial(lifecycle.forks_to_serve, self._db, self._lease, event.to_step))
                hand_over(self._run_dir, forks)
                self.step, self.saved_step = event.to_step, min(self.saved_step or 0, event.to_step) or None
                run_files.delete_checkpoints(self._run_dir, run_files.unchanged(self._run_dir, void))
            case Finished() | Failed():
                self.final = event

    def record_inheritance(self, claim: Claim, size_bytes: int) -> None:
        """The run begins with another run's checkpoint, which now lies in its own folder."""
        path = claim.checkpoint or ""
        self._write(partial(lifecycle.record_inheritance, self._db, self._lease, path, size_bytes))
        self._claim = claim
        self.step = self.saved_step = checkpoint_step(Path(path))

    def record_phase(self) -> None:
        """Write the phase the run is in, unless that was done a moment ago.

        A small model enters a hundred phases a second. Nobody reads them that fast, and on SQLite so many transactions
        would keep the heartbeat waiting for the lock.
        """
        event, now = self._unwritten_phase, time.monotonic()
        if event is not None and now >= self._next_phase_at:
            self._unwritten_phase, self._next_phase_at = None, now + _PHASE_SECONDS
            self._write(partial(lifecycle.record_phase, self._db, self._lease, event))

    def settle(self, judged: Verdict) -> None:
        """Write the end of the attempt."""
        db, lease, error = self._db, self._lease, judged.error
        match judged.ending:
            case Ending.SUCCEED:
                how = {"stop_reason": judged.stop_reason, "message": judged.message}
                self._write(partial(lifecycle.succeed, db, lease, **how))
            case Ending.STOP:
                self._write(partial(lifecycle.stop, db, lease, message=judged.message))
            case Ending.PAUSE:
                how = {"stop_reason": judged.stop_reason, "message": judged.message}
                self._write(partial(lifecycle.pause, db, lease, **how))
            case Ending.CANCEL:
                self._write(partial(lifecycle.cancelled, db, lease))
            case Ending.RELEASE:
                self._write(partial(lifecycle.requeue, db, lease, error=None, charge=False))
            case Ending.DISCARD:
                self._discard_checkpoint()
                self._write(partial(lifecycle.requeue, db, lease, error=error, charge=False))
            case Ending.REQUEUE:
                self._write(partial(lifecycle.requeue, db, lease, error=error, charge=True))
            case Ending.HALVE if error is not None and judged.halved is not None:
                before, after = judged.halved
                self._write(partial(lifecycle.halve_microbatch, db, lease, error=error, before=before, after=after))
            case Ending.FAIL if error is not None:
                self._write(partial(lifecycle.fail, db, lease, error))
        log.info("%s: attempt %d %s %s", lease.job_id, lease.attempt, judged.ending, judged.code)

    def _discard_checkpoint(self) -> None:
        checkpoint = self._claim.checkpoint
        if checkpoint is not None:
            self._write(partial(lifecycle.discard_checkpoint, self._db, self._lease, checkpoint))
            run_files.quarantine_checkpoint(self._run_dir, checkpoint)

    def _write(self, write: Callable[[], T]) -> T:
        """Write, and again while the database is away: the engine trains on, and the fence ends it if that lasts."""
        pause_seconds, patience_ends = 0.1, float("inf")
        while True:
            try:
                return write()
            except Unavailable:
                if self._keeper.lost:
                    raise LeaseLost("the job is another attempt's") from None
                if self._shutdown.asked:
                    patience_ends = min(patience_ends, time.monotonic() + self._settings.grace_seconds)
                if time.monotonic() > patience_ends or self._shutdown.urgent:
                    raise
                time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause_seconds = min(2 * pause_seconds, 2.0)


def _check(event: Event, *, step: int, steps_total: int, over: bool) -> None:
    """Raise ProtocolError on an event that cannot be true of a run of `steps_total` steps that is at `step`.

    `over`: the run has said how it ended.
    """
    match event:
        case Answered():
            raise ProtocolError("a run has no event `answered`")
        case Started() | StepDone() | CheckpointSaved() | RolledBack() | GuardTripped() if over:
            raise ProtocolError(f"`{event.event}` after the end of the run")
        case Started() if event.step != step:
            raise ProtocolError(f"a start from step {event.step} at step {step}")
        case Started() if event.steps_total != steps_total:
            raise ProtocolError(f"a run of {event.steps_total} steps was started, the spec has {steps_total}")
        case StepDone() if event.step not in (step, step + 1) or not 0 <= event.step <= steps_total:
            raise ProtocolError(f"step {event.step} of {steps_total} after step {step}")
        case CheckpointSaved() if not 0 <= event.step <= step:
            raise ProtocolError(f"a checkpoint of step {event.step} at step {step}")
        case RolledBack() if not 0 <= event.to_step <= step:
            raise ProtocolError(f"a rollback to step {event.to_step} at step {step}")
