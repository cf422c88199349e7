"""One run, from its spec to its last event: the loop around the trainer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ppo_engine import checkpoint, runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import GuardAction, TrainConfig
from ppo_engine.egress import Egress
from ppo_engine.errors import CheckpointCorrupt, GuardStopped, NonFinite
from ppo_engine.events import (
    CheckpointSaved,
    Event,
    Finished,
    GuardTripped,
    Outcome,
    Phase,
    PhaseEntered,
    RolledBack,
    Started,
    StepDone,
)
from ppo_engine.inheritance import Part, Takeover, is_inherited
from ppo_engine.program.guards import Trip, describe, read_rollbacks, write_rollbacks
from ppo_engine.program.inspection import keep_for_inspection
from ppo_engine.program.journal import NO_JOURNAL, Journal, Writer
from ppo_engine.program.oversight import Finding, Oversight
from ppo_engine.ranks import ALONE, Ranks
from ppo_engine.rundir import RunDir, checkpoint_step
from ppo_engine.stats import StepStats
from ppo_engine.trainer import Step
from ppo_engine.training_state import capture

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller decides about a run; none of it changes a number."""

    out: RunDir
    roots: Sequence[Path]
    attempt: int = 1
    resume: Path | None = None
    anew: frozenset[Part] = frozenset()
    """What is not taken over of a checkpoint that was inherited from another run."""
    threads: int | None = None
    prune: bool = True
    """Keep only the newest checkpoints; off where a service prunes by its own records."""
    egress: Egress = field(default_factory=Egress)
    """Which reward servers may be called."""
    parts: int = 1
    """In how many turns a step's responses are sampled."""
    meeting: runtime.Meeting | None = None
    """The other processes of the run."""


class Run:
    """Trains until done, ended by a guard, or asked to stop. `progress` says where it is, for a report of failure."""

    def __init__(self, config: TrainConfig, options: RunOptions, emit: Callable[[Event], None]) -> None:
        self.config, self.options, self.emit = config, options, emit
        self.phase, self.step = Phase.LOADING, 0
        self.resume = options.resume
        self.stopping = False
        self.ranks = ALONE
        self.oversight = Oversight(config)

    def stop(self) -> None:
        """Finish the step under way, checkpoint, and end."""
        self.stopping = True

    def __call__(self) -> None:
        """Run to the end; the last event is Finished.

        Raises:
            EngineError: the run cannot go on.
        """
        self._enter(Phase.LOADING)  # before all that takes time: whoever started this hears that it began
        resources, options = self.config.resources, self.options
        self.accelerator = runtime.start(resources, threads=options.threads, meeting=options.meeting)
        self.ranks = Ranks.current(self.accelerator.device)
        if not self.ranks.main:
            self.emit = _unheard
        resume = self.ranks.first(None if options.resume is None else str(options.resume))
        self.resume = None if resume is None else Path(resume)
        with runtime.memory_errors():
            self._load(self.resume)
            self.emit(self._started())
            ending = self._train()
            self.journal.close()
        self.emit(ending)

    def _stop_wanted(self) -> bool:
        """Whether to end after the step under way: what the main rank was told holds for all."""
        self.stopping = bool(self.ranks.first(self.stopping))
        return self.stopping

    def _load(self, resume: Path | None) -> None:
        """Make the trainer, anew or from a checkpoint, and open the journal behind its step."""
        self.trainer, self.identity = build_trainer(
            self.config,
            self.accelerator,
            roots=self.options.roots,
            egress=self.options.egress,
            on_phase=self._enter,
            resume=resume if resume is None or not is_inherited(resume) else Takeover(resume, self.options.anew),
            scratch=self.options.out.converted,
            ranks=self.ranks,
        )
        self.trainer.responder = replace(self.trainer.responder, parts=self.options.parts)
        self.step = self.trainer.step
        resumed = resume is not None
        out, config = self.options.out, self.config
        self.journal: Writer = NO_JOURNAL
        if self.ranks.main:
            self.journal = Journal(out, config, self.step, resumed=resumed, identity=self.identity)

    def _train(self) -> Finished:
        inherited = self.resume is not None and is_inherited(self.resume)
        anew = self.options.anew if inherited else frozenset()
        if self.resume is not None and not anew & {Part.TRAINING, Part.OVERSIGHT}:
            self.oversight.load_state_dict(checkpoint.read_values(self.resume)["oversight"])
        if self.oversight.guards.recall(read_rollbacks(self.options.out)):
            self._begin_again()
        if (self.resume is None or Part.TRAINING in anew) and not self._stop_wanted():
            self._begin()
        if self._stop_wanted() and self.step < self.config.ppo.steps:
            return Finished(outcome=Outcome.STOPPED, step=self.step)
        while self.step < self.config.ppo.steps:
            try:
                ending = self._finish_step(next(self.trainer.steps()))
            except NonFinite as error:
                ending = self._survive(error)
            if ending is not None:
                return ending
        return Finished(outcome=Outcome.COMPLETED, step=self.step)

    def _begin(self) -> None:
        """Evaluate before training, and keep the beginning where a guard may have to go back to it."""
        if self.trainer.evaluator is not None:
            scalars, samples, seconds = self._evaluate()
            stats = StepStats(step=0, scalars={**scalars, "time/ppo/evaluation": seconds})
            self.oversight.observe(self.ranks.first(dict(stats.scalars)))
            self.journal.write(stats, samples)
            self.emit(StepDone(step=0, scalars=dict(stats.scalars), samples=samples))
        if self.oversight.guards.roll_back:
            self._announce(self._save(None)[0], None)

    def _finish_step(self, step: Step) -> Finished | None:
        """Evaluate, judge, checkpoint and report one step; returns how the run ends, if it does.

        Whether to stop is asked once, before the checkpoint: who asks later gets one step more, and its checkpoint.
        """
        self.step = self.trainer.step
        stats, samples = step.stats, step.samples
        stop = self._stop_wanted()
        final = stop or self.step == self.config.ppo.steps
        evaluator = self.trainer.evaluator
        if evaluator is not None and (final or self.step % evaluator.config.every_steps == 0):
            scalars, answers, seconds = self._evaluate()
            stats, samples = _with(stats, scalars, "evaluation", seconds), [*samples, *answers]
        finding = self.oversight.observe(self.ranks.first(dict(stats.scalars)))  # times differ, decisions must not
        ending = self._ending(finding)
        actions = {trip.rule.action for trip in finding.trips}
        ends = final or ending is not None or GuardAction.FAIL in actions
        saved = None
        if GuardAction.ROLLBACK not in actions and (ends or self._checkpoint_due(finding)):
            saved, seconds = self._save(finding.score)
            stats = _with(stats, {}, "checkpoint", seconds)
        self._report(stats, samples)
        self._announce(saved, finding.score)
        ended = self._act(finding.trips, ending)
        if ended is None and stop and self.step < self.config.ppo.steps:
            return Finished(outcome=Outcome.STOPPED, step=self.step)
        return ended

    def _report(self, stats: StepStats, samples: list[Any]) -> None:
        self.journal.write(stats, samples)
        self.emit(StepDone(step=stats.step, scalars=dict(stats.scalars), samples=_without_tokens(samples)))
        if self.ranks.main:
            log.info("%s", _line(stats, self.config.ppo.steps))

    def _evaluate(self) -> tuple[dict[str, float], list[Any], float]:
        self._enter(Phase.EVALUATION)
        start = perf_counter()
        scalars, samples = self.trainer.evaluate()
        return scalars, samples, perf_counter() - start

    def _ending(self, finding: Finding) -> Finished | None:
        """How the run ends after this step, if guards or early stopping end it."""
        actions = {trip.rule.action for trip in finding.trips}
        if GuardAction.PAUSE in actions:
            return Finished(outcome=Outcome.PAUSED, step=self.step, reason="guard")
        if GuardAction.STOP in actions:
            return Finished(outcome=Outcome.COMPLETED, step=self.step, reason="guard")
        if finding.exhausted:
            return Finished(outcome=Outcome.COMPLETED, step=self.step, reason="early_stop")
        return None

    def _act(self, trips: Sequence[Trip], ending: Finished | None) -> Finished | None:
        """Tell of every guard that tripped, and do what fails or rolls back."""
        for trip in trips:
            self._tell(trip)
        for trip in trips:
            if trip.rule.action is GuardAction.FAIL:
                raise GuardStopped(f"guard: {describe(trip.rule)}" + _was(trip))
        if ending is not None and self.step < self.config.ppo.steps:
            return ending
        for trip in trips:
            if trip.rule.action is GuardAction.ROLLBACK:
                self._roll_back(trip)
                break
        return None

    def _tell(self, trip: Trip) -> None:
        rule, condition = trip.rule, describe(trip.rule)
        message = f"guard: {condition}{_was(trip)}: {rule.action}"
        log.warning("%s", message)
        self.emit(
            GuardTripped(
                step=self.step,
                rule=condition,
                action=rule.action,
                metric=rule.metric,
                value=trip.value,
                message=message,
            )
        )

    def _survive(self, error: NonFinite) -> Finished | None:
        """Keep what a step worked on whose numbers were not finite, and do what the guards say; or raise it on."""
        self.step = self.trainer.step
        if self.ranks.main:
            folder = keep_for_inspection(self.trainer, self.options.out, self.options.attempt, error)
            log.error("step %d: %s; what it worked on is in %s", self.step + 1, error.message, folder.name)
        self.ranks.wait()  # a rank that fails ends the others
        trip = self.oversight.guards.non_finite()
        if trip is None or trip.rule.action is GuardAction.FAIL:
            raise error
        self._tell(trip)
        if trip.rule.action is GuardAction.PAUSE:
            return Finished(outcome=Outcome.PAUSED, step=self.step, reason="guard")
        self._roll_back(trip, error)
        return None

    def _roll_back(self, trip: Trip, error: NonFinite | None = None) -> None:
        """Go on from the newest checkpoint with a smaller learning rate, and other samples.

        Checkpoints are not taken while the condition of such a guard holds, so the newest is from before the trouble.
        """
        guards = self.oversight.guards
        folder = self._newest()
        if folder is None or guards.exhausted(trip):
            why = "there is no checkpoint" if folder is None else f"it rolled back {trip.rule.max_times} times before"
            raise error or GuardStopped(f"guard: {describe(trip.rule)}{_was(trip)}; {why}")
        guards.rolled_back(trip)
        if self.ranks.main:
            write_rollbacks(self.options.out, guards.times)
        from_step = self.step
        self.journal.close()
        del self.trainer  # two of them may not fit
        gc.collect()
        self._enter(Phase.LOADING)
        self._load(folder)
        self._begin_again()
        log.warning("rolled back from step %d to step %d", from_step, self.step)
        self.emit(RolledBack(step=from_step, to_step=self.step, learning_rate_factor=guards.learning_rate_factor))

    def _newest(self) -> Path | None:
        found = checkpoint.newest_valid(self.options.out) if self.ranks.main else None
        path = self.ranks.first(None if found is None else str(found))
        return None if path is None else Path(path)

    def _begin_again(self) -> None:
        """What rollbacks made of the run, which the checkpoint gone back to does not know."""
        guards = self.oversight.guards
        self.trainer.begin_again(guards.learning_rate_factor, guards.rollbacks)

    def _checkpoint_due(self, finding: Finding) -> bool:
        scheduled = self.step % self.config.checkpoint.every_steps == 0
        return (scheduled or finding.improved) and self.oversight.guards.healthy

    def _save(self, score: float | None) -> tuple[checkpoint.Saved | None, float]:
        """Write a checkpoint, on the main rank; returns it and the seconds it took."""
        self._enter(Phase.CHECKPOINT)
        start = perf_counter()
        if not self.ranks.main:
            return None, 0.0
        values, tensors = capture(self.trainer)
        saved = checkpoint.save(
            self.options.out,
            step=self.step,
            attempt=self.options.attempt,
            identity=self.identity,
            values={**values, "oversight": self.oversight.state_dict(), "score": score},
            tensors=tensors,
            folders=self.trainer.models.folders(),
        )
        return saved, perf_counter() - start

    def _announce(self, saved: checkpoint.Saved | None, score: float | None) -> None:
        if saved is None:
            return
        path = str(saved.path.relative_to(self.options.out.root))
        self.emit(
            CheckpointSaved(step=self.step, path=path, size_bytes=saved.size_bytes, sha256=saved.sha256, score=score)
        )
        if self.options.prune:
            keep = self.config.checkpoint
            checkpoint.prune(self.options.out, keep.keep_last, keep.keep_best)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.emit(PhaseEntered(phase=phase, step=self.step))

    def _started(self) -> Started:
        trainer, resume = self.trainer, self.resume
        parameters = list(trainer.models.policy.parameters())
        return Started(
            step=trainer.step,
            steps_total=self.config.ppo.steps,
            device=str(trainer.accelerator.device),
            precision="bf16" if trainer.weights.dtype is torch.bfloat16 else "fp32",
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            prompts=len(trainer.prompts),
            prompts_left_out=trainer.prompts.left_out,
            resumed_from=None if resume is None else resume.name,
        )


def _unheard(event: Event) -> None:
    """The main rank tells what happens."""


def _with(stats: StepStats, scalars: Mapping[str, float], phase: str, seconds: float) -> StepStats:
    """The statistics of a step with what followed its update."""
    total = stats.scalars["time/ppo/total"] + seconds
    times = {f"time/ppo/{phase}": seconds, "time/ppo/total": total}
    return replace(stats, scalars={**stats.scalars, **scalars, **times})


def _without_tokens(samples: Sequence[Any]) -> list[Any]:
    return [sample.model_copy(update={"token_values": None}) for sample in samples]


def _was(trip: Trip) -> str:
    return "" if trip.value is None else f" (it is {trip.value:.4g})"


def _line(stats: StepStats, steps: int) -> str:
    """One line of the log per step."""
    keys = ("env/reward_mean", "eval/reward_mean", "objective/kl", "objective/entropy", "ppo/loss/value")
    shown = [f"{key} {stats.scalars[key]:.4g}" for key in keys if key in stats.scalars]
    return "  ".join([f"step {stats.step}/{steps}", *shown, f"{stats.scalars['time/ppo/total']:.1f} s"])


def resume_folder(run: RunDir, wanted: str | None) -> Path | None:
    """The checkpoint to resume from: the one named, relative to the run directory, or else the newest that verifies.

    Raises:
        CheckpointCorrupt: the named one is not there.
    """
    if wanted is None:
        return checkpoint.newest_valid(run)
    folder = run.root / wanted
    if not folder.is_dir():
        raise CheckpointCorrupt(f"no checkpoint {wanted} in {run.root}")
    log.info("resuming from step %d", checkpoint_step(folder))
    return folder
