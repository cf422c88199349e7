"""The wandb writer's own decisions, against a recording stand-in of the package.

Runs with the package itself are in `tests/integration/engine/test_wandb.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ppo_engine.config import TrainConfig
from ppo_engine.errors import WandbUnavailable, WandbUnreachable
from ppo_engine.events import Sample
from ppo_engine.program import wandb_writer
from ppo_engine.program.journal import Journal
from ppo_engine.program.wandb_writer import make_wandb
from ppo_engine.rundir import RunDir
from ppo_engine.stats import StepStats

SETTINGS = {"console", "disable_git", "disable_code", "x_disable_meta"}
SAMPLE = Sample(
    prompt="p", response="r", score=0.5, components={}, response_tokens=2, finished=True, evaluation=True, kl=0.25
)


class Recorder(ModuleType):
    """Looks like wandb, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.opened: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str]] = []
        self.finished = 0
        self.refusal: Exception | None = None
        base = type("Error", (Exception,), {})
        self.errors = SimpleNamespace(
            Error=base, CommError=type("CommError", (base,), {}), UsageError=type("UsageError", (base,), {})
        )

    def init(self, **given: Any) -> Recorder:
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(given)
        return self

    def Settings(self, **given: Any) -> dict[str, Any]:  # noqa: N802 - wandb's name
        assert set(given) == SETTINGS
        return given

    def Histogram(self, *, np_histogram: tuple[Any, Any]) -> tuple[list[int], float, float]:  # noqa: N802
        counts, edges = np_histogram
        return counts.tolist(), edges[0], edges[-1]

    def Table(self, *, columns: list[str], data: list[list[Any]]) -> list[dict[str, Any]]:  # noqa: N802
        return [dict(zip(columns, row, strict=True)) for row in data]

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", recorder)
    return recorder


def config(**wanted: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": {"policy": {"hub": "a/b"}},
            "prompts": {"inline": ["x"]},
            "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
            "ppo": {"steps": 5},
            "logging": {"wandb": wanted},
        }
    )


def stats(step: int, **histograms: list[float]) -> StepStats:
    return StepStats(step=step, scalars={"objective/kl": float(step)}, histograms=histograms)


def test_a_run_is_opened_as_the_spec_wants_it(wandb: Recorder, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "job_1")
    wanted = config(project="p", entity="e", group="g", tags=["a"], mode="offline")
    make_wandb(wanted, run, {"spec": "digest"})
    (opened,) = wandb.opened
    assert [opened[name] for name in ("project", "entity", "group", "tags", "mode")] == [
        "p",
        "e",
        "g",
        ["a"],
        "offline",
    ]
    assert (opened["name"], opened["dir"], opened["resume"]) == ("job_1", str(run.root), "allow")
    assert (opened["config"]["ppo"]["steps"], opened["config"]["identity"]) == (5, {"spec": "digest"})
    assert wandb.metrics == [("*", "step")]


def test_a_resumed_run_is_the_same_run_and_another_directory_another(wandb: Recorder, tmp_path: Path) -> None:
    for folder in ("one", "one", "two"):
        make_wandb(config(), RunDir(tmp_path / folder), {}).close()
    first, again, other = (opened["id"] for opened in wandb.opened)
    assert first == again != other
    assert wandb.finished == 3


def test_a_step_has_scalars_histograms_and_samples(wandb: Recorder, tmp_path: Path) -> None:
    writer = make_wandb(config(), RunDir(tmp_path), {})
    values = [1.0, 2.0, 2.0, float("nan"), float("inf")]
    writer.write(stats(3, **{"objective/kl_dist": values, "env/reward_dist": [float("nan")]}), [SAMPLE])
    (logged,) = wandb.logged
    assert (logged["step"], logged["objective/kl"]) == (3, 3.0)
    counts, low, high = logged["objective/kl_dist"]
    assert (sum(counts), counts[0], counts[-1], low, high) == (3, 1, 2, 1.0, 2.0)
    assert "env/reward_dist" not in logged
    assert logged["samples"] == [
        {
            "prompt": "p", "response": "r", "score": 0.5, "kl": 0.25, "response_tokens": 2, "finished": True,
            "evaluation": True,
        }
    ]  # fmt: skip


def test_steps_may_go_back(wandb: Recorder, tmp_path: Path) -> None:
    writer = make_wandb(config(), RunDir(tmp_path), {})
    for step in (0, 1, 2, 1, 2):
        writer.write(stats(step), [])
    assert [logged["step"] for logged in wandb.logged] == [0, 1, 2, 1, 2]


def test_a_missing_package_is_an_error_to_act_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(WandbUnavailable, match="not installed") as caught:
        make_wandb(config(), RunDir(tmp_path), {})
    assert "extra `wandb`" in caught.value.advice
    assert not caught.value.retryable


def test_a_missing_key_is_an_error_to_act_on(wandb: Recorder, tmp_path: Path) -> None:
    wandb.refusal = wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.\nmore")
    with pytest.raises(WandbUnavailable, match="No API key configured") as caught:
        make_wandb(config(), RunDir(tmp_path), {})
    assert "WANDB_API_KEY" in caught.value.advice
    assert (caught.value.category, caught.value.retryable) == ("user", False)


def test_a_server_that_does_not_answer_is_tried_again_later(wandb: Recorder, tmp_path: Path) -> None:
    wandb.refusal = wandb.errors.CommError("context deadline exceeded")
    with pytest.raises(WandbUnreachable) as caught:
        make_wandb(config(), RunDir(tmp_path), {})
    assert (caught.value.category, caught.value.retryable) == ("infra", True)


def test_trouble_after_the_start_costs_the_charts_and_not_the_training(
    wandb: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(wandb_writer.log, "warning", lambda text, *values: said.append(text % values))
    writer = make_wandb(config(), RunDir(tmp_path), {})
    wandb.refusal = OSError("pipe closed")
    for step in (1, 2):
        writer.write(stats(step), [])
    writer.close()
    assert said == ["wandb: OSError: pipe closed; the run goes on without it"]


def test_the_journal_of_a_run_writes_to_it_too(wandb: Recorder, tmp_path: Path) -> None:
    journal = Journal(RunDir(tmp_path), config(), 0, resumed=False, identity={"spec": "digest"})
    journal.write(stats(1), [SAMPLE])
    journal.close()
    assert wandb.opened[0]["config"]["identity"] == {"spec": "digest"}
    assert ([logged["step"] for logged in wandb.logged], wandb.finished) == ([1], 1)
    assert (tmp_path / "samples.jsonl").exists()
