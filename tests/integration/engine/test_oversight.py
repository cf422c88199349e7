"""A run watches itself: evaluation, best checkpoints, early stopping, and guards that act."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file

from ppo_engine.config import TrainConfig
from ppo_engine.errors import GuardStopped, NonFinite, WandbUnavailable
from ppo_engine.events import CheckpointSaved, Event, Finished, GuardTripped, Outcome, RolledBack, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir, checkpoint_step
from ppo_engine.trainer import Trainer
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.slow

T = TypeVar("T")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    return root


def spec(steps: int = 4, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": [{"name": "length", "rule": {"name": "length", "params": {"target": 3}}}],
        "generation": {"max_new_tokens": 8},
        "ppo": {"steps": steps, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
        "optimizer": {"learning_rate": 1e-3},
        "checkpoint": {"every_steps": 100},
    }
    return base | changes


def train(root: Path, out: Path, wanted: dict[str, Any], resume: Path | None = None) -> list[Event]:
    events: list[Event] = []
    options = RunOptions(out=RunDir(out), roots=[root], resume=resume, threads=1)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    return events


def of_type(kind: type[T], events: list[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


def guard(**rule: Any) -> dict[str, Any]:
    return {"guards": [{"metric": "objective/entropy", "above": -1e9, **rule}]}


EVALUATION = {"evaluation": {"prompts": {"inline": ["One", "Two", "Three", "Four", "Five"]}, "every_steps": 2}}


def test_evaluation_comes_before_training_and_changes_nothing(models: Path, tmp_path: Path) -> None:
    with_it = train(models, tmp_path / "with", spec(5, **EVALUATION))
    without = train(models, tmp_path / "without", spec(5))
    steps = of_type(StepDone, with_it)
    assert [step.step for step in steps] == [0, 1, 2, 3, 4, 5]
    assert [step.step for step in steps if "eval/reward_mean" in step.scalars] == [0, 2, 4, 5]
    assert set(steps[0].scalars) == {
        "eval/reward_mean",
        "eval/reward_std",
        "eval/reward/length_mean",
        "eval/kl",
        "eval/entropy",
        "eval/responses_len_mean",
        "eval/eos_fraction",
        "time/ppo/evaluation",
    }
    assert steps[0].scalars["eval/kl"] == pytest.approx(0.0, abs=1e-5)
    assert [sample.prompt for sample in steps[0].samples] == ["One", "Two", "Three", "Four"]
    assert all(sample.evaluation for sample in steps[0].samples)
    timeless = [{k: v for k, v in s.scalars.items() if not _varies(k)} for s in steps[1:]]
    expected = [{k: v for k, v in s.scalars.items() if not _varies(k)} for s in of_type(StepDone, without)]
    assert timeless == expected
    weights = [
        load_file(RunDir(tmp_path / x).checkpoint(5, 1) / "model/model.safetensors") for x in ("with", "without")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _varies(key: str) -> bool:
    return key.startswith(("time/", "memory/", "eval/")) or key == "tokens/per_second"


def test_an_evaluation_repeats_itself_as_long_as_the_policy_does(models: Path, tmp_path: Path) -> None:
    frozen = spec(2, optimizer={"learning_rate": 1e-30}, **EVALUATION)
    first, last = [s for s in of_type(StepDone, train(models, tmp_path, frozen)) if "eval/kl" in s.scalars]
    answers = [[x.response for x in step.samples if x.evaluation] for step in (first, last)]
    assert answers[0] == answers[1]
    assert first.scalars["eval/reward_mean"] == last.scalars["eval/reward_mean"]


def test_best_checkpoints_are_kept_beside_the_newest(models: Path, tmp_path: Path) -> None:
    wanted = spec(
        6,
        checkpoint={"every_steps": 1, "keep_last": 1, "keep_best": 2, "best_metric": "ppo/policy/entropy"}
        | {"best_direction": "up"},
    )
    saved = of_type(CheckpointSaved, train(models, tmp_path, wanted))
    ranked = sorted(saved, key=lambda event: event.score or 0.0, reverse=True)
    kept = {checkpoint_step(folder) for folder in RunDir(tmp_path).saved_checkpoints()}
    assert kept == {6, ranked[0].step, ranked[1].step}


def test_a_run_that_no_longer_improves_stops_early(models: Path, tmp_path: Path) -> None:
    wanted = spec(50, early_stop={"metric": "env/reward_mean", "patience": 2, "min_delta": 1e6})
    events = train(models, tmp_path, wanted)
    assert events[-1] == Finished(outcome=Outcome.COMPLETED, step=3, reason="early_stop")
    assert of_type(CheckpointSaved, events)[-1].step == 3


@pytest.mark.parametrize(("action", "outcome"), [("pause", Outcome.PAUSED), ("stop", Outcome.COMPLETED)])
def test_a_guard_ends_a_run_behind_a_checkpoint(models: Path, tmp_path: Path, action: str, outcome: Outcome) -> None:
    events = train(models, tmp_path, spec(50, **guard(action=action, for_steps=2)))
    assert events[-1] == Finished(outcome=outcome, step=2, reason="guard")
    assert of_type(CheckpointSaved, events)[-1].step == 2
    (tripped,) = of_type(GuardTripped, events)
    assert (tripped.step, tripped.rule, tripped.action) == (2, "objective/entropy above -1e+09 for 2 steps", action)


def test_a_paused_run_goes_on_from_its_checkpoint_and_is_not_paused_again_at_once(models: Path, tmp_path: Path) -> None:
    stop = {"early_stop": {"metric": "ppo/learning_rate", "direction": "up", "patience": 3}}
    train(models, tmp_path, spec(50, **guard(action="pause", for_steps=2), **stop))
    resumed = train(
        models, tmp_path, spec(50, **guard(action="pause", for_steps=2), **stop), RunDir(tmp_path).checkpoint(2, 1)
    )
    assert [step.step for step in of_type(StepDone, resumed)] == [3, 4]
    assert resumed[-1] == Finished(outcome=Outcome.COMPLETED, step=4, reason="early_stop")


def test_a_guard_may_fail_a_run_or_only_warn(models: Path, tmp_path: Path) -> None:
    with pytest.raises(GuardStopped, match="objective/entropy above -1e\\+09 \\(it is "):
        train(models, tmp_path / "fail", spec(50, **guard(action="fail")))
    assert RunDir(tmp_path / "fail").saved_checkpoints()
    events = train(models, tmp_path / "warn", spec(3, **guard(action="warn")))
    assert len(of_type(GuardTripped, events)) == 1
    assert events[-1] == Finished(outcome=Outcome.COMPLETED, step=3)


def test_a_rollback_goes_back_to_the_checkpoint_before_the_trouble_with_a_smaller_rate(
    models: Path, tmp_path: Path
) -> None:
    """Entropy is above the bound in every step: two rollbacks are allowed, the third time the run fails."""
    rule = guard(action="rollback", for_steps=3, learning_rate_factor=0.5, max_times=2)
    wanted = spec(50, checkpoint={"every_steps": 1, "keep_last": 5}, **rule)
    events: list[Event] = []
    run = Run(TrainConfig.model_validate(wanted), RunOptions(out=RunDir(tmp_path), roots=[models]), events.append)
    with pytest.raises(GuardStopped, match="rolled back 2 times before"):
        run()
    assert [(e.step, e.to_step, e.learning_rate_factor) for e in of_type(RolledBack, events)] == [
        (3, 0, 0.5),
        (3, 0, 0.25),
    ]
    steps = of_type(StepDone, events)
    assert [step.step for step in steps] == [1, 2, 3] * 3
    rates = [step.scalars["ppo/learning_rate"] for step in steps]
    assert rates == pytest.approx([1e-3] * 3 + [5e-4] * 3 + [2.5e-4] * 3)
    assert steps[0].samples != steps[3].samples, "the second try must not sample what led into trouble"
    assert [event.step for event in of_type(CheckpointSaved, events)] == [0]


def test_a_run_killed_after_a_rollback_still_knows_of_it(models: Path, tmp_path: Path) -> None:
    """The checkpoint gone back to was written before the rollback, and says nothing of it."""
    rule = guard(action="rollback", for_steps=2, learning_rate_factor=0.5, max_times=1)
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, RolledBack):
            raise KeyboardInterrupt

    options = RunOptions(out=RunDir(tmp_path), roots=[models])
    with pytest.raises(KeyboardInterrupt):
        Run(TrainConfig.model_validate(spec(50, **rule)), options, emit)()
    resumed: list[Event] = []
    options = RunOptions(out=RunDir(tmp_path), roots=[models], resume=RunDir(tmp_path).checkpoint(0, 1))
    with pytest.raises(GuardStopped, match="rolled back 1 times before"):
        Run(TrainConfig.model_validate(spec(50, **rule)), options, resumed.append)()
    first, second = of_type(StepDone, events)[0], of_type(StepDone, resumed)[0]
    assert (first.step, second.step) == (1, 1)
    assert second.scalars["ppo/learning_rate"] == first.scalars["ppo/learning_rate"] / 2
    assert [sample.response for sample in first.samples] != [sample.response for sample in second.samples]


def test_numbers_that_are_not_finite_are_kept_for_inspection_and_end_the_run(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_value_at(monkeypatch, step=2, times=1)
    with pytest.raises(NonFinite):
        train(models, tmp_path, spec())
    folder = RunDir(tmp_path).inspection(3, 1)
    texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    assert [sorted(text) for text in texts] == [["prompt", "response", "score"]] * 4
    tensors = load_file(folder / "batch.safetensors")
    assert tensors["response_ids"].shape == tensors["response_mask"].shape
    assert bool(tensors["old_values"].isnan().any())


def test_a_guard_rolls_back_from_numbers_that_are_not_finite(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_value_at(monkeypatch, step=2, times=1)
    wanted = spec(4, guards=[{"non_finite": True, "action": "rollback"}], checkpoint={"every_steps": 1})
    events = train(models, tmp_path, wanted)
    (back,) = of_type(RolledBack, events)
    assert (back.step, back.to_step) == (2, 2)
    assert events[-1] == Finished(outcome=Outcome.COMPLETED, step=4)
    weights = load_file(RunDir(tmp_path).checkpoint(4, 1) / "model/model.safetensors")
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())


def _break_value_at(monkeypatch: pytest.MonkeyPatch, *, step: int, times: int) -> None:
    """Spoil the value head when `step` steps are done, as a bad update would have done."""
    collect, left = Trainer.collect, [times]

    def spoiled(self: Trainer, clock: Any) -> Any:
        if self.step == step and left[0]:
            left[0] -= 1
            with torch.no_grad():
                self.models.policy.value_head.bias.fill_(torch.nan)
        return collect(self, clock)

    monkeypatch.setattr(Trainer, "collect", spoiled)


def test_values_of_every_token_are_stored_on_demand(models: Path, tmp_path: Path) -> None:
    events = train(models, tmp_path, spec(1, logging={"token_values": True, "samples_per_step": 2}))
    lines = [json.loads(line) for line in RunDir(tmp_path).samples.read_text().splitlines()]
    for line in lines:
        values = line["token_values"]
        assert {len(values[key]) for key in ("tokens", "logprobs", "ref_logprobs", "kl", "values", "advantages")} == {
            line["response_tokens"]
        }
        assert sum(values["kl"]) == pytest.approx(line["kl"], abs=1e-5)
    assert all(sample.token_values is None for step in of_type(StepDone, events) for sample in step.samples)


def test_a_run_that_asks_for_wandb_says_at_its_start_that_it_is_not_installed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(WandbUnavailable, match="not installed"):
        train(models, tmp_path, spec(1, logging={"wandb": {"mode": "offline"}}))
