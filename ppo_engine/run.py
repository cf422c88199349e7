"""One run, from its spec to its last event: the loop around the trainer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ppo_engine import checkpoint, runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig
from ppo_engine.errors import CheckpointCorrupt
from ppo_engine.events import CheckpointSaved, Event, Finished, Outcome, Phase, PhaseEntered, Sample, Started, StepDone
from ppo_engine.rundir import RunDir, checkpoint_step
from ppo_engine.stats import StepStats
from ppo_engine.tensorboard import TensorBoardWriter
from ppo_engine.trainer import Trainer
from ppo_engine.training_state import capture

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller decides about a run; none of it changes a number."""

    out: RunDir
    roots: Sequence[Path]
    attempt: int = 1
    resume: Path | None = None
    threads: int | None = None
    prune: bool = True
    """Keep only the newest checkpoints; off where a service prunes by its own records."""


class Run:
    """Trains until done or asked to stop. `progress` says where it is, for whoever reports a failure."""

    def __init__(self, config: TrainConfig, options: RunOptions, emit: Callable[[Event], None]) -> None:
        self.config, self.options, self.emit = config, options, emit
        self.phase, self.step = Phase.LOADING, 0
        self.stopping = False

    def stop(self) -> None:
        """Finish the step under way, checkpoint, and end."""
        self.stopping = True

    def __call__(self) -> None:
        """Run to the end; the last event is Finished.

        Raises:
            EngineError: the run cannot go on.
        """
        self._enter(Phase.LOADING)
        accelerator = runtime.start(self.config.resources, threads=self.options.threads)
        with runtime.memory_errors():
            trainer, identity = build_trainer(
                self.config,
                accelerator,
                roots=self.options.roots,
                on_phase=self._enter,
                resume=self.options.resume,
            )
            self.step = trainer.step
            self.emit(self._started(trainer))
            self._train(trainer, identity)
        outcome = Outcome.STOPPED if self.step < self.config.ppo.steps else Outcome.COMPLETED
        self.emit(Finished(outcome=outcome, step=self.step))

    def _train(self, trainer: Trainer, identity: dict[str, Any]) -> None:
        run, resumed = self.options.out, self.options.resume is not None
        forget_samples_after(run.samples, trainer.step)
        purge = trainer.step + 1 if resumed else None
        board = TensorBoardWriter(run.tensorboard, purge) if self.config.logging.tensorboard else None
        steps = trainer.steps()
        last = self.stopping
        while not last and (step := next(steps, None)) is not None:
            self.step = trainer.step
            last = self.stopping or self.step == self.config.ppo.steps
            saved, seconds = self._save_if_due(trainer, identity, last=last)
            stats = step.stats if saved is None else with_checkpoint_time(step.stats, seconds)
            if board is not None:
                board.write(stats, step.samples)
            append_samples(run.samples, stats.step, step.samples)
            self.emit(StepDone(step=stats.step, scalars=dict(stats.scalars), samples=step.samples))
            if saved is not None:
                self._announce(saved)
        if board is not None:
            board.close()

    def _save_if_due(
        self, trainer: Trainer, identity: dict[str, Any], *, last: bool
    ) -> tuple[checkpoint.Saved | None, float]:
        if not (last or self.step % self.config.checkpoint.every_steps == 0):
            return None, 0.0
        self._enter(Phase.CHECKPOINT)
        start = perf_counter()
        values, tensors = capture(trainer)
        saved = checkpoint.save(
            self.options.out,
            step=self.step,
            attempt=self.options.attempt,
            identity=identity,
            values=values,
            tensors=tensors,
            folders=trainer.models.folders(),
        )
        return saved, perf_counter() - start

    def _announce(self, saved: checkpoint.Saved) -> None:
        path = str(saved.path.relative_to(self.options.out.root))
        self.emit(CheckpointSaved(step=self.step, path=path, size_bytes=saved.size_bytes, sha256=saved.sha256))
        if self.options.prune:
            checkpoint.prune(self.options.out, self.config.checkpoint.keep_last)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.emit(PhaseEntered(phase=phase, step=self.step))

    def _started(self, trainer: Trainer) -> Started:
        parameters = list(trainer.models.policy.parameters())
        resume = self.options.resume
        return Started(
            step=trainer.step,
            steps_total=self.config.ppo.steps,
            device=str(trainer.accelerator.device),
            precision="bf16" if trainer.accelerator.mixed_precision == "bf16" else "fp32",
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            prompts=len(trainer.prompts),
            prompts_left_out=trainer.prompts.left_out,
            resumed_from=None if resume is None else resume.name,
        )


def with_checkpoint_time(stats: StepStats, seconds: float) -> StepStats:
    """The statistics of a step that wrote a checkpoint."""
    total = stats.scalars["time/ppo/total"] + seconds
    return replace(stats, scalars={**stats.scalars, "time/ppo/checkpoint": seconds, "time/ppo/total": total})


def append_samples(path: Path, step: int, samples: Sequence[Sample]) -> None:
    """One JSON line per sample."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"step": step, **sample.model_dump()}) + "\n" for sample in samples)


def forget_samples_after(path: Path, step: int) -> None:
    """Drop lines of steps that a resumed run will do again, and a line that a crash cut short."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_until(line, step)]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    partial.replace(path)


def _is_until(line: str, step: int) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError):
        return False


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
