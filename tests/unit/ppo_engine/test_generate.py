"""Answers of a job's weights, against transformers' own generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ppo_engine.config import LoRAConfig, ModelSource
from ppo_engine.egress import NO_HOST_ALLOWED
from ppo_engine.errands import Generation, GenerationWork
from ppo_engine.errors import CheckpointGone, InvalidConfig
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.lora import Adapters
from ppo_engine.program.generate import generate
from ppo_engine.rundir import RunDir
from tests.support.tiny_models import byte_tokenizer, tiny_llama

PROMPTS = ["The movie was", "My dinner at the"]
STEP_2 = {"name": "2", "step": 2, "folder": "checkpoints/step-00000002-1"}
WORDS = {"name": "words", "rule": {"name": "length", "params": {"target": 2}}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy before training, and a run with a checkpoint of other weights."""
    root = tmp_path_factory.mktemp("generate")
    tiny_llama(root / "policy", seed=0)
    tiny_llama(root / "run" / STEP_2["folder"] / "model", seed=1)  # type: ignore[operator]
    return root


def generated(root: Path, *weights: dict[str, Any], request: dict[str, Any] = {}, **facts: Any) -> Generation:  # noqa: B006
    work = {
        "job_id": "job_1",
        "request": {"prompts": PROMPTS, **request},
        "weights": weights,
        "model": {"policy": {"path": "policy"}},
        "generation": {"max_new_tokens": 12},
        "rewards": [WORDS],
        "resources": {"device": "cpu", "precision": "fp32"},
        **facts,
    }
    return generate(
        GenerationWork.model_validate(work), run=RunDir(root / "run"), roots=[root], egress=NO_HOST_ALLOWED, threads=1
    )


def likeliest(model: Any, prompt: str) -> str:
    """What transformers makes of a prompt, token by likeliest token."""
    tokenizer = byte_tokenizer()
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    out = model.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids), pad_token_id=256)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def texts(found: Generation, place: int) -> list[str]:
    return [response.response for response in found.answers[place].responses]


def test_each_of_the_weights_says_what_transformers_says_of_them(root: Path) -> None:
    found = generated(root, STEP_2, {"name": "base"}, request={"temperature": 0.0})
    trained, base = (
        AutoModelForCausalLM.from_pretrained(folder)
        for folder in (root / "run" / STEP_2["folder"] / "model", root / "policy")
    )
    assert texts(found, 0) == [likeliest(trained, prompt) for prompt in PROMPTS]
    assert texts(found, 1) == [likeliest(base, prompt) for prompt in PROMPTS]
    assert texts(found, 0) != texts(found, 1)
    assert [(by.name, by.step) for by in found.answers] == [("2", 2), ("base", None)]
    assert all(response.score is None for by in found.answers for response in by.responses)


def test_samples_are_the_seeds_alone(root: Path) -> None:
    base = {"name": "base"}
    wanted = {"samples_per_prompt": 16, "seed": 3}
    first, again, other = (generated(root, base, request={**wanted, **change}) for change in ({}, {}, {"seed": 4}))
    assert texts(first, 0) == texts(again, 0) != texts(other, 0)
    responses = first.answers[0].responses
    assert [(one.prompt, one.sample) for one in responses] == [(p, n) for p in range(2) for n in range(16)]
    assert len({one.response for one in responses}) > 25
    assert max(one.response_tokens for one in responses) <= 12
    short = generated(root, base, request={**wanted, "max_new_tokens": 3})
    assert {one.response_tokens for one in short.answers[0].responses} <= {1, 2, 3}


def test_scores_are_those_of_the_jobs_rewards(root: Path) -> None:
    answers = {"name": "sum", "weight": 2.0, "rule": {"name": "exact"}}
    base = {"name": "base"}
    likely = texts(generated(root, base, request={"temperature": 0.0}), 0)
    request = {"temperature": 0.0, "score": True, "records": [{"answer": likely[0]}, {}]}
    (by,) = generated(root, base, request=request, rewards=[WORDS, answers]).answers
    first, second = by.responses
    assert first.components["sum"] == 1.0
    assert first.score == pytest.approx(first.components["words"] + 2.0)
    assert (second.score, set(second.components), set(second.errors)) == (None, {"words"}, {"sum"})
    assert by.mean_score == first.score


def test_adapters_answer_on_top_of_the_policy(root: Path) -> None:
    language = load_language_model(ModelSource(path="policy"), [root])
    adapters = Adapters(language.model, LoRAConfig(rank=2), ModelSource(path="policy"))
    torch.manual_seed(0)
    for parameter in language.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.3)
    folder = root / "run" / "checkpoints" / "step-00000004-1"
    folder.mkdir(parents=True)
    adapters.save(folder / "model")
    wanted = [likeliest(language.model, prompt) for prompt in PROMPTS]
    weights = {"name": "last", "step": 4, "folder": "checkpoints/step-00000004-1"}
    model = {"policy": {"path": "policy"}, "lora": {"rank": 2}}
    found = generated(root, weights, {"name": "base"}, request={"temperature": 0.0}, model=model)
    assert texts(found, 0) == wanted
    assert texts(found, 1) != wanted


def test_what_cannot_be_answered_says_so(root: Path) -> None:
    with pytest.raises(CheckpointGone, match="step 9"):
        generated(root, {"name": "9", "step": 9, "folder": "checkpoints/step-00000009-1"})
    with pytest.raises(InvalidConfig, match="256"):
        generated(root, {"name": "base"}, request={"max_new_tokens": 250})
    with pytest.raises(InvalidConfig, match="chat template"):
        generated(root, {"name": "base"}, chat={"system": "Be brief."})
