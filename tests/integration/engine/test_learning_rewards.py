"""Training on rewards that are not rules, and evaluations and early stopping that look on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppo_engine.config import TrainConfig
from ppo_engine.events import Event, Finished, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from tests.support.judges import comma_judge
from tests.support.lessons import MODELS, PLAIN, PROMPTS, TASK, merged, teach
from tests.support.plugins import install

pytestmark = pytest.mark.slow

COMMAS = """
from transformers import AutoTokenizer

def by_token(model):
    tokenizer = AutoTokenizer.from_pretrained(model)

    def marks(exchange):
        tokens = [tokenizer.decode(token) for token in tokenizer(exchange.response)["input_ids"]]
        found = [float("," in token) for token in tokens]
        return (found + [0.0] * exchange.response_tokens)[: exchange.response_tokens]

    return lambda exchanges: [marks(exchange) for exchange in exchanges]
"""


def spec(**sections: Any) -> dict[str, Any]:
    task: dict[str, Any] = merged(merged(TASK, PLAIN), sections)
    return task


def test_a_dense_reward_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One point at every token with a comma. Four seeds gained 1.49 to 1.85 (mean 1.60, deviation 0.17)."""
    points = "[ppo_engine.rewards]\ncommas = dense_commas:by_token\n"
    install(tmp_path, monkeypatch, module="dense_commas", source=COMMAS, entry_points=points)
    plugin = {"name": "commas", "params": {"model": str(MODELS / "austen-2m")}}
    lesson = teach(spec(rewards=[{"name": "commas", "plugin": plugin}]))
    assert lesson.gain() > 1.0


def test_a_reward_model_teaches_what_it_was_trained_on(tmp_path: Path) -> None:
    """The rule is only a shadow here: what the policy learns of it, it learns from the model.

    Eight seeds gained at least 3.3 of its score (mean 4.2, deviation 0.6), and 0.52 by the rule (0.67, 0.08).
    """
    comma_judge(tmp_path / "judge")
    judge = {"name": "judge", "model": {"source": {"path": "judge"}}}
    wanted = spec(rewards=[judge, {**TASK["rewards"][0], "shadow": True}], ppo={"steps": 12})
    lesson = teach(wanted, roots=[tmp_path])
    assert lesson.gain() > 2.0
    assert lesson.gain("env/reward/comma_mean") > 0.4


def test_evaluations_see_the_progress_and_end_it(tmp_path: Path) -> None:
    """Over four seeds the best evaluation was 0.71 to 0.75 above the first, and runs ended at step 8 or 10 of 40."""
    wanted = spec(
        ppo={"steps": 40},
        evaluation={"prompts": {"inline": PROMPTS * 6}, "every_steps": 2},
        early_stop={"metric": "eval/reward_mean", "patience": 2, "min_delta": 0.1},
        checkpoint={"every_steps": 40},
        logging={"tensorboard": False},
    )
    events: list[Event] = []
    options = RunOptions(out=RunDir(tmp_path), roots=[MODELS], threads=1)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    seen = [
        e.scalars["eval/reward_mean"] for e in events if isinstance(e, StepDone) and "eval/reward_mean" in e.scalars
    ]
    ending = events[-1]
    assert isinstance(ending, Finished)
    assert (ending.reason, ending.step < 40) == ("early_stop", True)
    assert max(seen) - seen[0] > 0.55
    assert max(seen[-2:]) <= max(seen[:-2]) + 0.1 + 1e-9
