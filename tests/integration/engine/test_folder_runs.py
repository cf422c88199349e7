"""A run on a hub dataset as it lies in the hub's cache: it trains, and goes on only over the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppo_engine.config import TrainConfig
from ppo_engine.errors import InvalidConfig
from ppo_engine.events import CheckpointSaved, Event, Started, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from tests.support.engine_program import of_type
from tests.support.hub_folders import cached, json_lines, parquet, write
from tests.support.tiny_models import tiny_llama

PROMPTS = ["One and one are", "Two and two are", "Three and three are"]
ANSWERS = ["2", "4", "6"]


def shards(answers: list[str]) -> dict[str, bytes]:
    rows = list(zip(PROMPTS, answers, strict=True))
    parts = [rows[:2], rows[2:]]
    return {
        f"data/train-{n:05}-of-00002.parquet": parquet(prompt=[p for p, _ in part], answer=[a for _, a in part])
        for n, part in enumerate(parts)
    }


def train(root: Path, steps: int, resume: Path | None = None) -> list[Event]:
    wanted: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"folder": {"path": "datasets--owner--name"}},
        "evaluation": {"every_steps": 1, "prompts": {"folder": {"path": "held"}}},
        "rewards": [{"name": "right", "rule": {"name": "exact"}}],
        "generation": {"max_new_tokens": 4},
        "ppo": {"steps": steps, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
        "checkpoint": {"every_steps": 1, "keep_last": 5},
    }
    events: list[Event] = []
    options = RunOptions(out=RunDir(root / "run"), roots=[root], resume=resume, threads=1)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    return events


def test_a_run_on_a_folder_of_the_hubs_cache_resumes_over_the_same_rows_only(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    cached(tmp_path, shards(ANSWERS))
    write(tmp_path / "held", {"train.jsonl": json_lines("Four", "Five")})
    events = train(tmp_path, 2)
    evaluated, *steps = of_type(StepDone, events)
    assert (evaluated.step, [event.step for event in steps]) == (0, [1, 2])
    assert {sample.prompt for event in steps for sample in event.samples if not sample.evaluation} == set(PROMPTS)
    saved = tmp_path / "run" / of_type(CheckpointSaved, events)[0].path

    again = train(tmp_path, 2, resume=saved)
    assert of_type(Started, again)[0].step == 1
    (step,) = of_type(StepDone, again)
    assert (step.step, step.samples) == (2, steps[1].samples)

    rows = tmp_path / "held" / "train.jsonl"
    rows.write_bytes(json_lines("Four", "Six"))
    with pytest.raises(InvalidConfig, match="the evaluation prompts are not those"):
        train(tmp_path, 2, resume=saved)
    rows.write_bytes(json_lines("Four", "Five"))

    cached(tmp_path, shards(["2", "4", "7"]), commit="1" * 40)  # one answer is another, and main is there
    with pytest.raises(InvalidConfig, match="not those that this run began with"):
        train(tmp_path, 2, resume=saved)
