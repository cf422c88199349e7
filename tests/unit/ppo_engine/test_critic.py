"""A critic with its own trunk: what its first values are, by where it comes from, and who gets its gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from ppo_engine.batch import make_sequences
from ppo_engine.config import ModelSource, SeparateValue, ValueHeadInit
from ppo_engine.errors import InvalidConfig
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.models.critic import load_critic, make_critic, save_critic
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.policy import LanguageModel, Policy
from tests.support.tiny_models import tiny_classifier, tiny_gpt2, tiny_llama
from tests.support.tolerances import MATH, assert_close

PROMPT, RESPONSE = [5, 6, 7], [8, 9, 10]
SEQUENCES = make_sequences([PROMPT], [RESPONSE], pad_id=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    tiny_llama(root / "other", seed=3)
    tiny_llama(root / "small vocabulary", vocab_size=257)
    tiny_classifier(root / "reward")
    tiny_classifier(root / "reward, gpt2", family="gpt2")
    tiny_classifier(root / "two labels", labels=2)
    tiny_classifier(root / "both directions", family="bert")
    return root


def language_of(root: Path) -> LanguageModel:
    return load_language_model(ModelSource(path="policy"), [root])


def policy_of(root: Path, source: str | None, init: ValueHeadInit = ValueHeadInit.ZERO) -> Policy:
    language = language_of(root)
    torch.manual_seed(0)
    config = SeparateValue(source=None if source is None else ModelSource(path=source), init=init)
    critic = make_critic(config, language, [root])
    return Policy(language, ValueHeadInit.ZERO, critic=critic.trunk, head=critic.head).eval()


def values(policy: Policy) -> Tensor:
    found: Tensor = policy(SEQUENCES, Distribution()).values.detach()
    return found


@pytest.mark.parametrize("source", ["reward", "reward, gpt2"])
def test_a_reward_model_says_as_a_critic_what_it_said_as_a_judge(root: Path, source: str) -> None:
    """The value of the state before the last token is the score of the text up to there."""
    judge = AutoModelForSequenceClassification.from_pretrained(root / source).eval()
    found = values(policy_of(root, source))
    for column in range(len(RESPONSE)):
        with torch.no_grad():
            score = judge(input_ids=torch.tensor([PROMPT + RESPONSE[:column]])).logits[0, 0]
        assert_close(found[0, column], score, 1e-5)


def test_a_critic_from_the_policy_is_a_copy_of_its_trunk(root: Path) -> None:
    policy = policy_of(root, None, ValueHeadInit.NORMAL)
    shared = Policy(policy.language, ValueHeadInit.ZERO, head=policy.value_head)
    assert torch.equal(values(policy), values(shared))
    theirs = {p.data_ptr() for p in policy.language.parameters()}
    assert not theirs & {p.data_ptr() for p in policy.value_parameters()}


def test_a_critic_from_a_causal_model_has_its_trunk(root: Path) -> None:
    policy = policy_of(root, "other", ValueHeadInit.NORMAL)
    other = load_language_model(ModelSource(path="other"), [root])
    assert torch.equal(values(policy), values(Policy(other, ValueHeadInit.ZERO, head=policy.value_head)))
    assert not values(policy_of(root, "other")).any()


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_a_saved_critic_is_the_same_and_can_be_a_source(tmp_path: Path, make: object) -> None:
    make(tmp_path / "policy")  # type: ignore[operator]
    policy = policy_of(tmp_path, None, ValueHeadInit.NORMAL)
    assert policy.critic is not None
    with torch.no_grad():
        policy.value_head.bias.fill_(0.25)
        next(policy.critic.parameters()).add_(0.1)
    save_critic(policy.critic, policy.value_head, tmp_path / "critic")
    again = load_critic(tmp_path / "critic")
    resumed = Policy(policy.language, ValueHeadInit.ZERO, critic=again.trunk, head=again.head)
    assert torch.equal(values(resumed), values(policy))
    assert torch.equal(values(policy_of(tmp_path, "critic")), values(policy))


def test_no_gradient_of_the_value_reaches_the_policy(root: Path) -> None:
    policy = policy_of(root, "reward")
    policy(SEQUENCES, Distribution()).values.sum().backward()
    assert all(p.grad is None for p in policy.policy_parameters())
    assert all(p.grad is not None for p in policy.value_parameters())
    mine = {id(p) for p in policy.value_parameters()} | {id(p) for p in policy.policy_parameters()}
    assert mine == {id(p) for p in policy.parameters()}


def test_the_value_side_alone_gives_the_same_values_and_trains_its_trunk(root: Path) -> None:
    policy = policy_of(root, "reward")
    alone = policy(SEQUENCES, Distribution(), value_only=True)
    assert_close(alone.values, values(policy), MATH)
    alone.values.sum().backward()
    assert policy.critic is not None
    assert all(p.grad is not None for p in policy.critic.parameters())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("small vocabulary", "a vocabulary of 257, the policy one of 258"),
        ("two labels", "no reward model with one score"),
        ("both directions", "no reward model with one score"),
    ],
)
def test_what_cannot_be_a_critic_is_refused(root: Path, source: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        policy_of(root, source)


def test_a_trunk_that_reads_ahead_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "policy")
    folder = tiny_classifier(tmp_path / "ahead", family="bert")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("BertForSequenceClassification", "BertModel"))
    with pytest.raises(InvalidConfig, match="reads the tokens after"):
        policy_of(tmp_path, "ahead")
