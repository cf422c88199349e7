"""`python -m ppo_engine run` as a process: events, signals, resume, and failures that say what to do."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ppo_engine import checkpoint, runtime
from ppo_engine.build import build_trainer
from ppo_engine.config import TrainConfig
from ppo_engine.errors import CheckpointCorrupt, EngineError
from ppo_engine.events import CheckpointSaved, Event, Failed, Finished, Started, StepDone, parse
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from ppo_engine.stats import HISTOGRAMS, SCALARS
from ppo_engine.training_state import capture, restore
from tests.support.engine_program import command, of_type, run
from tests.support.tiny_models import tiny_classifier, tiny_llama

pytestmark = pytest.mark.slow

OPTIONAL = {"ppo/loss/kl", "ppo/loss/ptx", "objective/ptx_perplexity", "time/ppo/evaluation"}
"""Reported only by runs that have them."""
ALWAYS = {key for key in SCALARS if not key.startswith("eval/")} - OPTIONAL

RULES = [
    {"name": "length", "weight": 0.5, "rule": {"name": "length", "params": {"target": 3}}},
    {"name": "mood", "rule": {"name": "sentiment"}},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    tiny_classifier(root / "judge")
    tiny_classifier(root / "nan-judge", nan=True)
    tiny_classifier(root / "two-labels", labels=2)
    return root


def spec(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": RULES,
        "generation": {"max_new_tokens": 8},
        "ppo": {"steps": 4, "batch_size": 5, "minibatch_size": 3, "microbatch_size": 2, "ppo_epochs": 2},
        "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 1.0},
        "checkpoint": {"every_steps": 1, "keep_last": 2},
    }
    return base | changes


def test_a_run_reports_every_metric_and_resumes_bit_for_bit(models: Path, tmp_path: Path) -> None:
    whole, cut = RunDir(tmp_path / "whole"), RunDir(tmp_path / "cut")
    wanted = spec(ppo=spec()["ppo"] | {"score_scaling": "normalise", "entropy_coef": 0.01})
    code, events, _ = run(models, whole.root, wanted, "--keep-checkpoints")
    assert code == 0
    assert of_type(Finished, events)[-1].outcome == "completed"
    steps = of_type(StepDone, events)
    assert [event.step for event in steps] == [1, 2, 3, 4]
    families = {"env/reward/length_mean", "env/reward/mood_mean"}
    assert set().union(*(step.scalars for step in steps)) == ALWAYS | families
    assert steps[0].scalars["objective/kl"] == 0.0
    assert steps[0].scalars["ppo/policy/ratio_max"] >= 1.0
    assert len(steps[0].samples) == 4

    code, events, _ = run(models, cut.root, wanted | {"ppo": wanted["ppo"]}, "--attempt", "1", "--keep-checkpoints")
    for folder in (cut.checkpoint(4, 1), cut.checkpoint(3, 1)):
        subprocess.run(["rm", "-r", str(folder)], check=True)
    code, events, _ = run(models, cut.root, wanted, "--resume", "--attempt", "2", "--keep-checkpoints")
    assert code == 0
    assert of_type(Started, events)[0].step == 2
    for name in (
        "model/model.safetensors",
        "value.safetensors",
        "optimizer.safetensors",
        "rng.safetensors",
        "state.json",
    ):
        assert (whole.checkpoint(4, 1) / name).read_bytes() == (cut.checkpoint(4, 2) / name).read_bytes(), name
    stored = [json.loads(line) for line in cut.samples.read_text().splitlines()]
    assert [line["step"] for line in stored] == sorted([1, 2, 3, 4] * 4)
    assert stored == [json.loads(line) for line in whole.samples.read_text().splitlines()]
    _check_board(cut)


def _check_board(out: RunDir) -> None:
    board = EventAccumulator(str(out.tensorboard), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    tags = board.Tags()
    assert set(tags["scalars"]) >= ALWAYS
    assert set(HISTOGRAMS) <= set(tags["histograms"])
    assert [point.step for point in board.Scalars("objective/kl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("left_out", ["value", "optimizer", "sampling", "shuffling", "prompts", "kl_coef", "moments"])
def test_each_part_of_a_checkpoint_matters(models: Path, tmp_path: Path, left_out: str) -> None:
    """Resuming without one part must not give the uninterrupted run's weights: otherwise nobody would notice."""
    out = RunDir(tmp_path)
    ppo = {"steps": 3, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1, "score_scaling": "scale"}
    kl = {"init_kl_coef": 5.0, "adaptive": {"target": 1e-3, "horizon": 10}}
    config = TrainConfig.model_validate(spec(ppo=ppo, kl=kl))
    accelerator = runtime.start(config.resources, threads=1)

    def trained(resume: Path | None, *, spoil: bool) -> dict[str, Any]:
        trainer, identity = build_trainer(config, accelerator, roots=[models], on_phase=lambda _: None, resume=resume)
        if spoil:
            _spoil(trainer, left_out, build_trainer(config, accelerator, roots=[models], on_phase=lambda _: None)[0])
        for _ in trainer.steps():
            if trainer.step == 2 and resume is None:
                values, tensors = capture(trainer)
                checkpoint.save(
                    out,
                    step=2,
                    attempt=1,
                    identity=identity,
                    values=values,
                    tensors=tensors,
                    folders=trainer.models.folders(),
                )
        return {name: p.detach().clone() for name, p in trainer.models.policy.named_parameters()}

    def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return all(bool((a[name] == b[name]).all()) for name in a)

    whole = trained(None, spoil=False)
    assert same(trained(out.checkpoint(2, 1), spoil=False), whole)
    assert not same(trained(out.checkpoint(2, 1), spoil=True), whole)


def _spoil(trainer: Any, part: str, fresh: Any) -> None:
    """Give one part of a resumed trainer the state that it has in a new one."""
    values, tensors = capture(trainer)
    new_values, new_tensors = capture(fresh)
    if part in values:
        values[part] = new_values[part]
    elif part == "optimizer":
        trainer.optimizer.state.clear()
        return
    elif part == "value":
        tensors["value"] = new_tensors["value"]
    else:
        tensors["rng"][part] = new_tensors["rng"][part]
    restore(trainer, values, tensors)


@pytest.fixture
def started(models: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], RunDir]]:
    """A long run whose first step is done."""
    wanted = spec(ppo=spec()["ppo"] | {"steps": 100_000}, checkpoint={"every_steps": 100_000})
    process = subprocess.Popen(
        command(models, tmp_path, wanted),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    while not isinstance(parse(process.stdout.readline()), StepDone):
        pass
    yield process, RunDir(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    if process.stdin is not None:
        process.stdin.close()


def test_sigterm_ends_with_a_checkpoint_and_exit_code_0(started: tuple[subprocess.Popen[bytes], RunDir]) -> None:
    process, out = started
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    events = [parse(line) for line in process.stdout.read().splitlines()]
    assert process.wait(timeout=60) == 0
    finished = of_type(Finished, events)[-1]
    assert finished.outcome == "stopped"
    assert of_type(CheckpointSaved, events)[-1].step == finished.step
    assert out.checkpoint(finished.step, 1).is_dir()


def test_a_run_does_not_outlive_its_supervisor(started: tuple[subprocess.Popen[bytes], RunDir]) -> None:
    process, _ = started
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)


def test_sigusr1_shows_where_a_run_is(models: Path, tmp_path: Path) -> None:
    wanted = spec(ppo=spec()["ppo"] | {"steps": 100_000})
    with subprocess.Popen(
        command(models, tmp_path, wanted), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while not isinstance(parse(process.stdout.readline()), StepDone):
            pass
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        process.kill()
        assert process.stderr is not None
        assert b"Current thread" in process.stderr.read()


FAILURES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "missing model": ({"model": {"policy": {"path": "nowhere"}}}, "model_unavailable", "user", "nowhere"),
    "no usable prompt": (
        {"prompts": {"inline": ["far too long a prompt"], "max_tokens": 2}},
        "prompts_unusable",
        "data",
        "between 1 and 2 tokens",
    ),
    "nan scores": (
        {"rewards": [{"name": "judge", "model": {"source": {"path": "nan-judge"}}}]},
        "reward_failed",
        "reward",
        "judge",
    ),
    "two labels": (
        {"rewards": [{"name": "judge", "model": {"source": {"path": "two-labels"}}}]},
        "reward_failed",
        "reward",
        "label",
    ),
    "context too small": ({"generation": {"max_new_tokens": 300}}, "invalid_config", "user", "256"),
    "no cuda": ({"resources": {"device": "cuda"}}, "device_unavailable", "capacity", "CUDA"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_its_cause_and_what_to_do(models: Path, tmp_path: Path, name: str) -> None:
    changes, code, category, words = FAILURES[name]
    with pytest.raises(EngineError) as raised:
        train(models, tmp_path, spec(**changes))
    error = raised.value
    assert (error.code, error.category) == (code, category)
    assert words in error.message
    assert error.advice


def train(root: Path, out: Path, wanted: dict[str, Any], resume: Path | None = None) -> list[Event]:
    """A run in this process."""
    events: list[Event] = []
    options = RunOptions(out=RunDir(out), roots=[root], resume=resume, threads=1)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    return events


def test_a_failed_run_ends_with_its_reason_and_exit_code_1(models: Path, tmp_path: Path) -> None:
    changes, code, category, words = FAILURES["nan scores"]
    exit_code, events, log = run(models, tmp_path, spec(**changes))
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert (exit_code, failed.code, failed.category, failed.retryable) == (1, code, category, False)
    assert (failed.phase, failed.step) == ("rollout", 0)
    assert words in failed.message
    assert words in log


def test_a_reward_model_scores_a_run(models: Path, tmp_path: Path) -> None:
    events = train(models, tmp_path, spec(rewards=[{"name": "judge", "model": {"source": {"path": "judge"}}}]))
    scalars = of_type(StepDone, events)[-1].scalars
    assert scalars["env/reward/judge_mean"] == pytest.approx(scalars["env/reward_mean"])


def test_a_checkpoint_of_changed_models_is_not_resumed(models: Path, tmp_path: Path) -> None:
    own = tmp_path / "models"
    tiny_llama(own / "policy")
    out = RunDir(tmp_path / "out")
    train(own, out.root, spec())
    weights = own / "policy" / "model.safetensors"
    changed = {name: tensor + 0.01 for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointCorrupt, match="reference"):
        train(own, out.root, spec(), resume=out.checkpoint(4, 1))


def test_prompts_that_changed_are_not_resumed(models: Path, tmp_path: Path) -> None:
    out = RunDir(tmp_path)
    train(models, out.root, spec())
    with pytest.raises(CheckpointCorrupt, match="spec"):
        train(models, out.root, spec(prompts={"inline": ["Other"]}), resume=out.checkpoint(4, 1))


def test_a_broken_spec_fails_with_every_reason(models: Path, tmp_path: Path) -> None:
    wanted = spec(ppo={"steps": 1, "batch_size": 2, "minibatch_size": 4}, generation={"top_p": 0.9})
    code, events, _ = run(models, tmp_path, wanted)
    assert code == 1
    assert isinstance(events[-1], Failed)
    assert "minibatch_size" in events[-1].message
    assert "top_p" in events[-1].message
