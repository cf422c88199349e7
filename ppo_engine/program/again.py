"""Makes the steps after a checkpoint again, away from the run directory.

The replay is a run like any other, in a folder of its own: it reads the checkpoint where it lies, has no TensorBoard
and no wandb, and what it says goes nowhere but here.
"""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ppo_engine import checkpoint
from ppo_engine.config import TrainConfig
from ppo_engine.egress import Egress
from ppo_engine.errors import CheckpointCorrupt, CheckpointGone, GuardStopped, NonFinite
from ppo_engine.events import Event, Finished, Started, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from ppo_engine.training_state import capture
from ppo_engine.verification import RecordedSample, RecordedStep, VerificationWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a replay reads and writes, and what it may use."""

    run: RunDir
    """Of the job; read only."""
    scratch: Path
    roots: Sequence[Path]
    egress: Egress
    threads: int | None


@dataclass(slots=True)
class Replay:
    """What a replay told."""

    out: RunDir
    written_with: dict[str, str]
    """Versions of libraries that wrote the checkpoint it began with."""
    steps: dict[int, RecordedStep] = field(default_factory=dict)
    checkpoints: dict[int, Path] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    ended: str | None = None
    """Why it came to an end before its last step."""


class _Enough(Exception):
    """The last step to replay is done."""


class _Listener:
    """Keeps what a run says of the steps after its start; `keep`: steps whose state is saved."""

    def __init__(self, replay: Replay, start: int, last: int, keep: set[int]) -> None:
        self._replay, self._start, self._last, self._keep = replay, start, last, keep
        self.run: Run | None = None

    def hear(self, event: Event) -> None:
        """Note one event; raises _Enough after the last step."""
        match event:
            case Started():
                self._replay.device, self._replay.precision = event.device, event.precision
            case Finished():
                self._replay.ended = event.reason or event.outcome
            case StepDone() if event.step > self._start:
                self._note(event)

    def _note(self, event: StepDone) -> None:
        self._replay.steps[event.step] = _record(event)
        if event.step in self._keep and self.run is not None:
            self._replay.checkpoints[event.step] = _save(self.run, self._replay.out)
        if event.step == self._last:
            raise _Enough


def replayed(work: VerificationWork, place: Place, folder: Path, keep: set[int]) -> Replay:
    """Make the steps again in `folder`; checkpoints of the steps in `keep` are written there.

    Raises:
        CheckpointGone: the checkpoint to begin with is no longer kept.
        CheckpointCorrupt: it is damaged, or not of this run.
        EngineError: the run cannot be made again: a model, prompt set or reward is not what it was.
    """
    source, last = place.run.root / work.start.folder, work.start.step + work.steps
    if not source.is_dir():
        raise CheckpointGone(f"the checkpoint of step {work.start.step} is no longer kept")
    folder.mkdir()
    out = RunDir(folder)
    if place.run.rollbacks.exists():
        shutil.copyfile(place.run.rollbacks, out.rollbacks)
    try:
        replay = Replay(out, checkpoint.read_values(source).get("versions", {}))
        listener = _Listener(replay, work.start.step, last, keep)
        listener.run = Run(_quiet(work.config), _options(work, place, source, out), listener.hear)
        with suppress(_Enough):
            listener.run()
    except (GuardStopped, NonFinite) as error:
        replay.ended = error.message
    except CheckpointCorrupt as error:
        advice = "Name another checkpoint of the job; a running job passes over a damaged one by itself."
        raise CheckpointCorrupt(error.message, suggestion=advice) from error
    del listener  # two models may not fit
    gc.collect()
    return replay


def _quiet(config: TrainConfig) -> TrainConfig:
    """The same numbers, told to nobody, in one process, without checkpoints on the way."""
    parts = {
        "logging": config.logging.model_copy(update={"tensorboard": False, "wandb": None, "token_values": False}),
        "checkpoint": config.checkpoint.model_copy(update={"every_steps": config.ppo.steps}),
        "resources": config.resources.model_copy(update={"processes": 1}),
    }
    return config.model_copy(update=parts)


def _options(work: VerificationWork, place: Place, source: Path, out: RunDir) -> RunOptions:
    return RunOptions(
        out=out,
        roots=place.roots,
        resume=source,
        anew=frozenset(work.anew),
        threads=work.config.resources.threads or place.threads,
        prune=False,
        parts=work.parts,
        egress=place.egress,
    )


def _record(event: StepDone) -> RecordedStep:
    """A step as the service stores it: finite numbers, and texts that a database takes."""
    samples = [
        RecordedSample(
            **{
                name: getattr(sample, name)
                for name in RecordedSample.model_fields
                if name not in ("prompt", "response")
            },
            prompt=_stored(sample.prompt),
            response=_stored(sample.response),
        )
        for sample in event.samples
    ]
    scalars = {key: value for key, value in event.scalars.items() if math.isfinite(value)}
    return RecordedStep(step=event.step, scalars=scalars, samples=samples)


def _stored(text: str) -> str:
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _save(run: Run, out: RunDir) -> Path:
    values, tensors = capture(run.trainer)
    saved = checkpoint.save(
        out,
        step=run.step,
        attempt=1,
        identity=run.identity,
        values={**values, "oversight": run.oversight.state_dict()},
        tensors=tensors,
        folders=run.trainer.models.folders(),
    )
    return saved.path
