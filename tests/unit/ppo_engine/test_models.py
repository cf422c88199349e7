"""Families of language models: our split into trunk and head gives what the whole model gives, whatever the padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ppo_engine.batch import Sequences, make_sequences
from ppo_engine.config import ModelSource, ValueHeadInit
from ppo_engine.errors import ModelUnavailable
from ppo_engine.experience.generation import Responses, Sampling, sample, uniform_numbers
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.policy import LanguageModel, Policy
from tests.support.families import END, FAMILIES, language_model
from tests.support.tiny_models import tiny_classifier, tiny_llama
from tests.support.tolerances import GOLDEN, assert_close


def sampled(
    language: LanguageModel, distribution: Distribution, *, tokens: int = 12, seed: int = 0
) -> tuple[Sequences, Responses]:
    prompts = make_sequences([[5, 6, 7], [8, 9, 10, 11, 12], [13]], [[1]] * 3, pad_id=0)
    drawn = sample(
        language,
        prompts.prompt_ids,
        prompts.prompt_mask,
        Sampling(
            distribution=distribution,
            max_new_tokens=tokens,
            pad_id=0,
            uniform=uniform_numbers(3, tokens, torch.Generator().manual_seed(seed)),
        ),
    )
    sequences = Sequences(
        prompt_ids=prompts.prompt_ids,
        prompt_mask=prompts.prompt_mask,
        response_ids=drawn.ids,
        response_present=drawn.mask,
        response_mask=drawn.mask,
    )
    return sequences, drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_scorer_and_the_plain_model_agree(family: str) -> None:
    language = language_model(family)
    distribution = Distribution(temperature=0.8, eos_ids=(END,))
    sequences, drawn = sampled(language, distribution)
    with torch.no_grad():
        scored, _ = language(sequences, distribution)
    assert_close(scored, drawn.logprobs, GOLDEN)
    for row in range(3):
        prompt = sequences.prompt_ids[row][sequences.prompt_mask[row]]
        response = drawn.ids[row][drawn.mask[row]]
        with torch.no_grad():
            logits = language.model(torch.cat([prompt, response]).unsqueeze(0)).logits[0].float() / 0.8
        table = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        assert_close(scored[row][drawn.mask[row]], table.gather(1, response.unsqueeze(1)).squeeze(1), GOLDEN)


def test_a_response_ends_at_its_end_token_and_not_before() -> None:
    language = language_model("llama")
    ended = 0
    for seed in range(8):
        _, drawn = sampled(language, Distribution(eos_ids=(END, 4)), tokens=30, seed=seed)
        for ids, mask in zip(drawn.ids, drawn.mask, strict=True):
            response = ids[mask].tolist()
            assert not {END, 4} & set(response[:-1])
            ended += response[-1] in {END, 4}
            assert len(response) == 30 or response[-1] in {END, 4}
    assert ended > 5


def test_an_end_token_in_the_prompt_does_not_end_the_response() -> None:
    language = language_model("llama")
    prompts = make_sequences([[END, 5], [6, END]], [[1], [1]], pad_id=END)
    drawn = sample(
        language,
        prompts.prompt_ids,
        prompts.prompt_mask,
        Sampling(
            distribution=Distribution(min_new_tokens=5, eos_ids=(END,)),
            max_new_tokens=5,
            pad_id=END,
            uniform=uniform_numbers(2, 5, torch.Generator().manual_seed(0)),
        ),
    )
    assert drawn.mask.sum(dim=1).tolist() == [5, 5]


def test_sampling_follows_the_distribution() -> None:
    """4,000 first tokens: each frequency within five standard errors of its probability."""
    language, draws = language_model("llama"), 4000
    with torch.no_grad():
        language.model.lm_head.weight.mul_(20.0)
    prompt = torch.tensor([[5, 6]]).expand(draws, 2)
    distribution = Distribution(temperature=1.3)
    drawn = sample(
        language,
        prompt,
        torch.ones_like(prompt).bool(),
        Sampling(
            distribution=distribution,
            max_new_tokens=1,
            pad_id=0,
            uniform=uniform_numbers(draws, 1, torch.Generator().manual_seed(0)),
        ),
    )
    with torch.no_grad():
        p = (language.model(prompt[:1]).logits[0, -1].float() / 1.3).softmax(-1)
    frequency = torch.bincount(drawn.ids[:, 0], minlength=61) / draws
    assert bool(((frequency - p).abs() <= 5 * (p * (1 - p) / draws).sqrt() + 1e-9).all())
    assert p.max() > 0.05


def test_sampling_and_training_run_without_dropout() -> None:
    config = AutoConfig.for_model("gpt2", **FAMILIES["gpt2"], resid_pdrop=0.9, attn_pdrop=0.9, embd_pdrop=0.9)
    policy = Policy(LanguageModel(AutoModelForCausalLM.from_config(config)), ValueHeadInit.ZERO).eval()
    sequences = make_sequences([[5, 6]], [[7, 8]], pad_id=0)
    first, second = (policy(sequences, Distribution()).logprobs for _ in range(2))
    assert torch.equal(first, second)


def test_the_value_side_alone_leaves_a_shared_trunk_without_a_gradient() -> None:
    policy = Policy(language_model("llama"), ValueHeadInit.NORMAL)
    sequences = make_sequences([[5, 6]], [[7, 8]], pad_id=0)
    whole, alone = policy(sequences, Distribution()), policy(sequences, Distribution(), value_only=True)
    assert torch.equal(whole.values, alone.values)
    assert not alone.logprobs.any()
    alone.values.sum().backward()
    assert all(p.grad is not None for p in policy.value_parameters())
    assert all(p.grad is None for p in policy.policy_parameters())
    both = {id(p) for p in policy.value_parameters()} ^ {id(p) for p in policy.policy_parameters()}
    assert both == {id(p) for p in policy.parameters()}


def test_value_head_starts_at_zero_or_normal_in_fp32() -> None:
    language = language_model("llama")
    zero, normal = (Policy(language, init).value_head for init in ValueHeadInit)
    assert not zero.weight.any()
    assert 0.1 < float(normal.weight.detach().std()) < 0.3
    assert zero.weight.dtype is torch.float32


def source(path: Path) -> ModelSource:
    return ModelSource(path=path.name)


def test_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="not under the model and data roots"):
        load_language_model(source(tmp_path / "nowhere"), [tmp_path])


def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "policy")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable):
        load_language_model(source(folder), [tmp_path])


def test_a_classifier_is_not_a_policy(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable):
        load_language_model(source(tiny_classifier(tmp_path / "classifier", family="bert")), [tmp_path])


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "policy")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load_language_model(source(folder), [tmp_path])
