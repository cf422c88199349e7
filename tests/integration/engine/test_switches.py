"""Whole runs with the switches of the algorithm on: they train, report what they say, and resume bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppo_engine.config import TrainConfig
from ppo_engine.errors import InvalidConfig, NothingToTrainOn, PromptsUnusable
from ppo_engine.events import Event, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from tests.support.tiny_models import tiny_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_llama(folder / "policy")
    texts = [f"The number {n} follows {n - 1}." for n in range(1, 8)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    return folder


def spec(**sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": [{"name": "length", "rule": {"name": "length", "params": {"target": 3}}}],
        "generation": {"max_new_tokens": 6, "temperature": 0.9},
        "ppo": {
            "steps": 4,
            "batch_size": 7,
            "minibatch_size": 3,
            "microbatch_size": 2,
            "gradient_accumulation_steps": 2,
            "ppo_epochs": 2,
            "clip_range_high": 0.28,
            "dual_clip": 3.0,
            "value_clip_range": None,
            "huber_delta": 1.0,
            "entropy_coef": 0.01,
            "value_gae_lambda": 1.0,
            "length_adaptive_lambda": 0.5,
            "score_scaling": "normalise",
            "score_clip": 2.0,
            "missing_eos_penalty": 0.5,
            "overlong_buffer_tokens": 2,
            "critic_warmup_steps": 1,
            "target_kl": 10.0,
        },
        "kl": {"penalty": "k3", "placement": "loss", "init_kl_coef": 0.05},
        "ptx": {"texts": {"file": {"path": "texts.txt"}, "max_tokens": 12}, "coef": 0.5, "batch_size": 3},
        "optimizer": {"learning_rate": 1e-3, "value_learning_rate": 3e-3, "schedule": "cosine", "max_grad_norm": 1.0},
        "checkpoint": {"every_steps": 1, "keep_last": 4},
        "resources": {"device": "cpu", "precision": "fp32"},
    }
    return base | {name: base.get(name, {}) | section for name, section in sections.items()}


def train(root: Path, out: Path, wanted: dict[str, Any], resume: Path | None = None, attempt: int = 1) -> list[Any]:
    """The steps of a run in this process."""
    events: list[Event] = []
    options = RunOptions(out=RunDir(out), roots=[root], resume=resume, threads=1, attempt=attempt)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    return [event for event in events if isinstance(event, StepDone)]


def test_everything_at_once_resumes_bit_for_bit(root: Path, tmp_path: Path) -> None:
    out = RunDir(tmp_path)
    steps = train(root, out.root, spec())
    first, second = steps[0].scalars, steps[1].scalars
    assert (first["ppo/learning_rate"], first["ppo/value_learning_rate"]) == (0.0, 3e-3)
    assert "ppo/loss/policy" not in first
    assert {"ppo/loss/policy", "ppo/loss/kl", "ppo/loss/ptx", "objective/ptx_perplexity"} <= set(second)
    assert second["ppo/value_learning_rate"] == pytest.approx(3 * second["ppo/learning_rate"])
    assert second["ppo/mean_non_score_reward"] == 0.0
    wanted = {path.name: path.read_bytes() for path in out.checkpoint(4, 1).glob("*.safetensors")}
    wanted["state.json"] = (out.checkpoint(4, 1) / "state.json").read_bytes()
    assert len(wanted) >= 4
    train(root, out.root, spec(), resume=out.checkpoint(2, 1), attempt=2)
    assert {name: (out.checkpoint(4, 2) / name).read_bytes() for name in wanted} == wanted


def test_reading_text_makes_it_likelier(root: Path, tmp_path: Path) -> None:
    ppo = {"steps": 12, "critic_warmup_steps": 0}
    steps = train(root, tmp_path, spec(ppo=ppo, ptx={"coef": 5.0}, optimizer={"learning_rate": 1e-2}))
    perplexities = [step.scalars["objective/ptx_perplexity"] for step in steps]
    assert perplexities[-1] < 0.5 * perplexities[0]


def test_nothing_to_train_on_says_what_to_do(root: Path, tmp_path: Path) -> None:
    only = {"mask_truncated": True, "missing_eos_penalty": None, "batch_size": 1, "minibatch_size": 1}
    ppo = only | {"microbatch_size": 1, "overlong_buffer_tokens": None}
    with pytest.raises(NothingToTrainOn) as raised:
        train(root, tmp_path, spec(ppo=ppo, generation={"min_new_tokens": 2, "max_new_tokens": 2}))
    assert "max_new_tokens" in raised.value.advice


def test_texts_that_are_not_there_say_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptsUnusable, match=r"nowhere\.txt"):
        train(root, tmp_path, spec(ptx={"texts": {"file": {"path": "nowhere.txt"}}}))


def test_a_penalty_that_is_no_loss_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"kl\.penalty"):
        train(root, tmp_path, spec(kl={"penalty": "kl"}))
