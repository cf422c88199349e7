"""A run that is killed at every step ends as one that was not: weights, numbers and samples, bit for bit on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ppo_engine import checkpoint
from ppo_engine.config import TrainConfig
from ppo_engine.events import Event, Finished, Outcome, Phase, PhaseEntered, StepDone, parse
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from tests.support.engine_program import command
from tests.support.tiny_models import tiny_classifier, tiny_llama

pytestmark = pytest.mark.slow

STEPS = 20
SPEC: dict[str, Any] = {
    "model": {
        "policy": {"path": "policy"},
        "lora": {"rank": 2},
        "value": {"separate": {"source": {"path": "judge"}}},
        "ema_decay": 0.9,
        "reference_reset_steps": 7,
    },
    "prompts": {"inline": ["The movie was", "My dinner", "It"]},
    "rewards": [
        {"name": "length", "rule": {"name": "length", "params": {"target": 3}}},
        {"name": "mood", "weight": 2.0, "rule": {"name": "sentiment"}},
    ],
    "generation": {"max_new_tokens": 4},
    "ppo": {
        "steps": STEPS,
        "batch_size": 5,
        "minibatch_size": 3,
        "microbatch_size": 2,
        "ppo_epochs": 2,
        "score_scaling": "normalise",
        "critic_warmup_steps": 2,
    },
    "kl": {"init_kl_coef": 0.5, "adaptive": {"target": 1e-3, "horizon": 20}},
    "ptx": {"texts": {"inline": ["The sun rose.", "Rain fell.", "A door closed.", "Snow."]}, "batch_size": 2},
    "optimizer": {"learning_rate": 1e-2, "schedule": "cosine", "warmup_steps": 3, "max_grad_norm": 1.0},
    "evaluation": {"prompts": {"inline": ["She was"]}, "every_steps": 6, "temperature": 1.0},
    "checkpoint": {"every_steps": 1, "keep_last": 3},
    "resources": {"device": "cpu", "precision": "fp32"},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    tiny_classifier(root / "judge")
    return root


class Killed(BaseException):
    """What a process does when it is killed: nothing more."""


@dataclass
class Told:
    """What a run reported: the numbers of each step, but for times and memory, and its samples."""

    steps: dict[int, tuple[dict[str, float], list[Any]]] = field(default_factory=dict)
    evaluations: bool = True
    """Whether to remember those too: a run that is stopped evaluates its last step."""
    finished: Finished | None = None

    def hear(self, event: Event) -> None:
        """Remember it; a step that comes again must be the same again."""
        if isinstance(event, Finished):
            self.finished = event
        if not isinstance(event, StepDone):
            return
        numbers = {key: value for key, value in event.scalars.items() if not key.startswith(("time/", "memory/"))}
        numbers = {key: value for key, value in numbers.items() if math.isfinite(value) and "per_second" not in key}
        samples = [sample.model_dump() for sample in event.samples]
        if not self.evaluations:
            numbers, samples = _without_evaluation(numbers, samples)
        said = (numbers, samples)
        assert self.steps.setdefault(event.step, said) == said, f"step {event.step} came out otherwise a second time"


def _without_evaluation(
    numbers: dict[str, float], samples: list[dict[str, Any]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    training = {key: value for key, value in numbers.items() if not key.startswith("eval/")}
    return training, [sample for sample in samples if not sample["evaluation"]]


def train(models: Path, out: RunDir, hear: Callable[[Run, Event], None], attempt: int = 1) -> None:
    """One process's share of a run: from its newest checkpoint to its end."""
    options = RunOptions(
        out=out, roots=[models], threads=1, attempt=attempt, resume=checkpoint.newest_valid(out), prune=True
    )
    run = Run(TrainConfig.model_validate(SPEC), options, lambda event: hear(run, event))
    run()


@pytest.fixture(scope="module")
def whole(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Told]:
    out, told = RunDir(tmp_path_factory.mktemp("whole")), Told()
    train(models, out, lambda _, event: told.hear(event))
    assert list(told.steps) == list(range(STEPS + 1))
    return out, told


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint, but for the manifest and the cards of adapters, which name paths and times."""
    found = sorted(path for path in folder.rglob("*") if path.suffix == ".safetensors" or path.name == "state.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def check_same(cut: RunDir, whole: RunDir, *, evaluations: bool = True) -> None:
    """The last checkpoint and the journal of samples."""
    wanted, found = files_of(whole.saved_checkpoints()[0]), files_of(cut.saved_checkpoints()[0])
    assert len(wanted) >= 6
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []
    samples = [[json.loads(line) for line in run.samples.read_text().splitlines()] for run in (cut, whole)]
    mine, theirs = ([line for line in lines if evaluations or not line["evaluation"]] for lines in samples)
    assert mine == theirs


PLACES = [Phase.ROLLOUT, Phase.OPTIMISE, Phase.CHECKPOINT, None]
"""Where a life ends, one after the other: at the beginning of a phase, or (None) right after its step is reported."""


def test_killed_at_every_step_and_resumed_it_ends_as_if_it_had_not_been(
    models: Path, whole: tuple[RunDir, Told], tmp_path: Path
) -> None:
    """Each process makes one step more and dies in the next, in a phase that changes from life to life."""
    out, told, lives = RunDir(tmp_path), Told(), 0

    def die(step: int, place: Phase | None) -> Callable[[Run, Event], None]:
        def hear(_: Run, event: Event) -> None:
            told.hear(event)
            here = isinstance(event, StepDone) if place is None else isinstance(event, PhaseEntered)
            if here and event.step >= step and (place is None or getattr(event, "phase", None) is place):
                raise Killed

        return hear

    for step in range(1, STEPS):
        lives += 1
        with pytest.raises(Killed):
            train(models, out, die(step, PLACES[step % len(PLACES)]), attempt=lives)
    train(models, out, lambda _, event: told.hear(event), attempt=lives + 1)
    assert told.steps == whole[1].steps
    check_same(out, whole[0])


def test_stopped_and_resumed_time_and_again_it_ends_as_if_it_had_not_been(
    models: Path, whole: tuple[RunDir, Told], tmp_path: Path
) -> None:
    """What a pause does: the step is finished, saved, and the process ends well; the next goes on."""
    out, told = RunDir(tmp_path), Told(evaluations=False)

    def hear(run: Run, event: Event) -> None:
        told.hear(event)
        if isinstance(event, PhaseEntered) and event.phase is Phase.OPTIMISE and event.step in (4, 5, 12):
            run.stop()

    for attempt in (1, 2, 3):
        train(models, out, hear, attempt)
        assert told.finished is not None
        assert told.finished.outcome is Outcome.STOPPED
    train(models, out, hear, 4)
    assert told.finished.outcome is Outcome.COMPLETED
    steps = {step: _without_evaluation(*said) for step, said in whole[1].steps.items()}
    assert told.steps == steps
    check_same(out, whole[0], evaluations=False)


def test_processes_killed_for_good_end_as_if_they_had_not_been(
    models: Path, whole: tuple[RunDir, Told], tmp_path: Path
) -> None:
    """SIGKILL, twice in a row, whatever the process does at that moment."""
    out, told = RunDir(tmp_path), Told()
    for attempt, last in ((1, 3), (2, 11), (3, STEPS)):
        words = command(models, out.root, SPEC, "--resume", "--attempt", str(attempt))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                event = parse(line)
                told.hear(event)
                if isinstance(event, StepDone) and event.step == last < STEPS:
                    process.kill()
                    break
        assert process.returncode == (0 if last == STEPS else -9)
    assert told.steps == whole[1].steps
    check_same(out, whole[0])
