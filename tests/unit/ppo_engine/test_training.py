"""What a step does to the trainer: guards, the critic's warm-up, rates, controllers, texts, and what is kept of it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from ppo_engine.batch import Sequences, make_sequences
from ppo_engine.errors import NonFinite, NothingToTrainOn
from ppo_engine.experience.rollout import Rollout
from ppo_engine.rewards import Scores
from ppo_engine.summary import Stopwatch
from ppo_engine.trainer import Trainer, Update
from ppo_engine.training_state import capture, restore
from tests.support.trainers import PAD, make_trainer, snapshot

PROMPTS = [[3, 4], [5, 6, 7], [8], [9, 10]]
RESPONSES = [[4, 5, 6], [7], [8, 9, 10, 11], [12, 13]]
SCORES = [1.0, -1.0, 0.5, 2.0]
TEXTS = ["abcdef", "ghij", "klm"]
PTX = {"texts": {"inline": ["unused"]}, "coef": 0.5, "batch_size": 2}
FAST = {"learning_rate": 1e-2}


def responses(kept: tuple[bool, ...] = (True,) * 4) -> Sequences:
    masks = [[int(keep)] * len(row) for keep, row in zip(kept, RESPONSES, strict=True)]
    return make_sequences(PROMPTS, RESPONSES, pad_id=PAD, response_masks=masks)


def step(trainer: Trainer, **options: Any) -> tuple[Update, dict[str, float]]:
    done = trainer.update(responses(), options.pop("scores", SCORES), **options)
    return done, trainer.scalars(done)


def unchanged(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, weight in before.items() if torch.equal(weight, after[name])}


def gradients(trainer: Trainer) -> list[Any]:
    return [p.grad for p in trainer.models.policy.parameters() if p.grad is not None]


# --- guards ----------------------------------------------------------------------------------------------------


def explode(trainer: Trainer, row: int) -> None:
    """Make the old policy of one response so sure of nothing that its ratio is past every bound."""
    evaluate = trainer._evaluate

    def exploded(*arguments: Any) -> Any:
        batch = evaluate(*arguments)
        batch.old_logprobs[row] -= math.inf
        return batch

    trainer._evaluate = exploded  # type: ignore[method-assign]


def test_one_exploded_minibatch_takes_its_whole_optimizer_step_along_and_no_other() -> None:
    """Under a warm Adam even a gradient of 0 would move weights; here the step is not taken at all."""
    sizes = {"minibatch_size": 1, "gradient_accumulation_steps": 2, "ppo_epochs": 1}
    trainer = make_trainer(texts=TEXTS, ppo=sizes, optimizer=FAST, ptx=PTX)
    step(trainer)
    explode(trainer, 2)
    taken = []
    original = trainer.optimizer.step
    trainer.optimizer.step = lambda: (taken.append(snapshot(trainer)), original())  # type: ignore[method-assign]
    assert trainer.texts is not None
    drawn = trainer.texts.state_dict()["position"]
    done, scalars = step(trainer, permutations=lambda _: [0, 1, 3, 2])
    after = snapshot(trainer)
    assert scalars["ppo/skipped_updates"] == 2
    assert len(taken) == 1  # the first group's step; that of rows 2 and 3 never came
    assert len(done.record.updates) == 4
    assert not unchanged(taken[0], after)
    assert all(bool(torch.isfinite(weight).all()) for weight in after.values())
    assert all(math.isfinite(value) for value in done.record.means().values())
    assert gradients(trainer) == []
    assert trainer.texts.state_dict() != drawn


def test_a_skipped_step_reads_no_text() -> None:
    trainer = make_trainer(texts=TEXTS, ppo={"ratio_threshold": 1e-3}, ptx=PTX)
    assert trainer.texts is not None
    place, before = trainer.texts.state_dict(), snapshot(trainer)
    _, scalars = step(trainer)
    assert trainer.texts.state_dict() == place
    assert unchanged(before, snapshot(trainer)) == set(before)
    assert "ppo/loss/ptx" not in scalars
    assert "objective/ptx_perplexity" not in scalars


def poison_value(trainer: Trainer) -> None:
    trainer.models.policy.value_head.bias.data.fill_(math.nan)


def poison_reference(trainer: Trainer) -> None:
    assert trainer.models.reference is not None
    for parameter in trainer.models.reference.parameters():
        parameter.data.fill_(math.nan)


def poison_texts(trainer: Trainer) -> None:
    logprobs = trainer._text_logprobs
    object.__setattr__(trainer.optimiser.texts, "logprobs", lambda texts: logprobs(texts) * math.nan)


def poison_embedding(trainer: Trainer) -> None:
    trainer.models.policy.language.model.get_input_embeddings().weight.data[4].fill_(math.inf)


@pytest.mark.parametrize("poison", [poison_value, poison_reference, poison_texts, poison_embedding])
def test_what_is_not_finite_never_reaches_a_weight(poison: Any) -> None:
    loss = {"placement": "loss", "penalty": "k3"}
    trainer = make_trainer(texts=TEXTS, kl=loss, optimizer=FAST, ptx=PTX, ppo={"minibatch_size": 2})
    step(trainer)
    poison(trainer)
    before, moments = snapshot(trainer), trainer.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    with pytest.raises(NonFinite):
        step(trainer)
    after = snapshot(trainer)
    assert all(torch.equal(w.nan_to_num(), after[name].nan_to_num()) for name, w in before.items())
    assert torch.equal(trainer.optimizer.state_dict()["state"][0]["exp_avg"], moments)
    assert gradients(trainer) == []
    assert trainer.step == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_does_not_enter_the_running_moments(bad: float) -> None:
    trainer = make_trainer(ppo={"score_scaling": "normalise"})
    step(trainer)
    mean = trainer.moments.mean
    with pytest.raises(NonFinite, match="score"):
        step(trainer, scores=[bad, *SCORES[1:]])
    assert trainer.moments.mean == mean


def test_a_dense_reward_that_is_not_finite_is_noticed() -> None:
    dense = torch.zeros(4, 4)
    dense[2, 1] = math.nan
    with pytest.raises(NonFinite):
        step(make_trainer(), token_rewards=dense)


def test_a_batch_without_a_token_to_train_on_is_an_error_that_says_so() -> None:
    trainer = make_trainer(ppo={"mask_truncated": True})
    before = snapshot(trainer)
    with pytest.raises(NothingToTrainOn, match="no response"):
        step(trainer, truncated=[True] * 4)
    with pytest.raises(NothingToTrainOn):
        trainer.update(responses((False,) * 4), SCORES)
    assert unchanged(before, snapshot(trainer)) == set(before)


def test_target_kl_ends_the_epochs() -> None:
    far = make_trainer(ppo={"ppo_epochs": 4, "target_kl": 1e-9}, optimizer={"learning_rate": 0.05})
    near = make_trainer(ppo={"ppo_epochs": 4, "target_kl": 1e9}, optimizer={"learning_rate": 0.05})
    moves = [update["ppo/policy/policykl"] for update in step(near)[0].record.updates]
    first = next(epoch for epoch, moved in enumerate(moves, start=1) if moved > 1.5e-9)
    assert step(far)[1]["ppo/epochs_run"] == first < 4


# --- KL placement and controllers -------------------------------------------------------------------------------


def test_kl_in_the_loss_leaves_the_rewards_alone() -> None:
    inside = make_trainer(kl={"placement": "loss", "penalty": "mse", "init_kl_coef": 0.3}, ppo={"ppo_epochs": 1})
    done, scalars = step(inside)
    rewards = done.batch.rewards.sum(dim=1)
    assert rewards.tolist() == pytest.approx(SCORES)
    assert scalars["ppo/mean_non_score_reward"] == 0.0
    kl = done.batch.kl[done.batch.mask]
    assert scalars["ppo/loss/kl"] == pytest.approx(0.3 * float(kl.mean()), rel=1e-5)  # on the first pass nothing moved
    assert scalars["objective/kl"] == pytest.approx(float(kl.sum()) / 4, rel=1e-5)
    assert scalars["objective/rlhf_reward"] == pytest.approx(sum(SCORES) / 4 - 0.3 * float(kl.sum()) / 4, rel=1e-4)


def test_kl_in_the_reward_is_no_term_of_the_loss() -> None:
    done, scalars = step(make_trainer(kl={"init_kl_coef": 0.3}))
    assert "ppo/loss/kl" not in scalars
    mean = float(done.batch.kl[done.batch.mask].mean())
    assert scalars["ppo/mean_non_score_reward"] == pytest.approx(-0.3 * mean, rel=1e-5)


@pytest.mark.parametrize("penalty", ["kl", "abs", "mse", "full", "k3"])
def test_every_penalty_can_be_in_the_rewards(penalty: str) -> None:
    done, _ = step(make_trainer(kl={"penalty": penalty, "init_kl_coef": 0.1}))
    mask = done.batch.mask
    taken = (-0.1 * done.batch.kl).masked_fill(~mask, 0.0).sum(dim=1)
    assert done.batch.rewards.sum(dim=1).tolist() == pytest.approx((taken + torch.tensor(SCORES)).tolist(), rel=1e-5)


@pytest.mark.parametrize("penalty", ["abs", "mse", "k3"])
def test_a_penalty_in_the_loss_draws_the_policy_to_its_reference(penalty: str) -> None:
    kl = {"penalty": penalty, "placement": "loss", "init_kl_coef": 10.0, "fixed": {}}
    trainer = make_trainer(kl=kl, optimizer=FAST, ppo={"ppo_epochs": 8, "ratio_threshold": 1e9})
    first = step(trainer)[1]["objective/kl"]
    assert step(trainer)[1]["objective/kl"] < 0.7 * first


def test_controllers() -> None:
    fixed = make_trainer(kl={"init_kl_coef": 0.25, "fixed": {}})
    assert (step(fixed)[1]["objective/kl_coef"], fixed.kl.value) == (0.25, 0.25)
    adaptive = make_trainer(kl={"init_kl_coef": 0.25, "adaptive": {"target": 1e-3, "horizon": 10.0}})
    kept = (True, False, True, True)
    trained = adaptive.update(responses(kept), [*SCORES[:1], math.nan, *SCORES[2:]])
    kl = float(trained.batch.kl[trained.batch.mask].sum()) / 3
    error = min(max(kl / 1e-3 - 1, -0.2), 0.2)
    assert trained.kl_coef == 0.25
    assert adaptive.kl.value == pytest.approx(0.25 * (1 + error * 3 / 10.0))


# --- rates and the critic's warm-up ------------------------------------------------------------------------------


def test_policy_and_critic_learn_at_their_own_rates() -> None:
    """Adam's first step moves a weight by its rate, whatever the gradient, once eps is small."""
    rates = {"learning_rate": 1e-4, "value_learning_rate": 1e-2, "schedule": "linear", "eps": 1e-12}
    trainer = make_trainer(optimizer=rates, ppo={"ppo_epochs": 1})
    trainer.learning_rate_factor = 0.5
    trainer.step = 1
    before = snapshot(trainer)
    _, scalars = step(trainer)
    assert scalars["ppo/learning_rate"] == pytest.approx(0.5e-4 * 0.75)
    assert scalars["ppo/value_learning_rate"] == pytest.approx(0.5e-2 * 0.75)
    after = snapshot(trainer)
    bias = float((after["value_head.bias"] - before["value_head.bias"]).abs())
    assert bias == pytest.approx(0.5e-2 * 0.75, rel=1e-3)
    name = "language.model.model.norm.weight"
    assert float((after[name] - before[name]).abs().max()) == pytest.approx(0.5e-4 * 0.75, rel=2e-2)


def test_the_warm_up_trains_the_critic_and_nothing_else() -> None:
    ppo = {"critic_warmup_steps": 2, "minibatch_size": 3, "microbatch_size": 1, "target_kl": 1e-12}
    trainer = make_trainer(texts=TEXTS, ppo=ppo, optimizer=FAST | {"weight_decay": 0.1}, ptx=PTX)
    assert trainer.texts is not None
    place, beta = trainer.texts.state_dict(), trainer.kl.value
    critic = {"value_head.weight", "value_head.bias"}
    errors = []
    for _ in range(2):
        before = snapshot(trainer)
        _, scalars = step(trainer)
        assert unchanged(before, snapshot(trainer)) == set(before) - critic
        assert len(trainer.optimizer.state_dict()["state"]) == len(critic)  # the policy's moments were never made
        assert (scalars["ppo/learning_rate"], scalars["ppo/value_learning_rate"]) == (0.0, 1e-2)
        assert scalars["ppo/loss/total"] == pytest.approx(0.1 * scalars["ppo/loss/value"])
        assert not {"ppo/loss/policy", "ppo/policy/ratio_max", "ppo/loss/ptx"} & set(scalars)
        assert scalars["ppo/epochs_run"] == 4
        errors.append(scalars["ppo/val/error"])
    assert errors[1] < errors[0]
    assert trainer.texts.state_dict() == place
    assert trainer.kl.value == beta
    before = snapshot(trainer)
    _, scalars = step(trainer)
    assert not unchanged(before, snapshot(trainer))
    assert {"ppo/loss/policy", "ppo/policy/ratio_max", "ppo/loss/ptx"} <= set(scalars)


def test_the_warm_up_ends_at_the_first_step_with_a_good_enough_critic() -> None:
    trainer = make_trainer(ppo={"critic_warmup_steps": 3, "critic_warmup_until": -1e9})
    before = snapshot(trainer)
    _, scalars = step(trainer)
    assert "ppo/loss/policy" in scalars
    assert not unchanged(before, snapshot(trainer))
    assert trainer.critic_ready
    never = make_trainer(ppo={"critic_warmup_steps": 3, "critic_warmup_until": 0.999})
    for _ in range(3):
        assert "ppo/loss/policy" not in step(never)[1]
    assert "ppo/loss/policy" in step(never)[1]


# --- what is kept ------------------------------------------------------------------------------------------------


class NoPrompts:
    def state_dict(self) -> dict[str, int | str]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert state == {}


def test_a_restored_trainer_goes_on_with_the_same_numbers() -> None:
    sections: dict[str, Any] = {
        "ppo": {"steps": 6, "critic_warmup_steps": 2, "critic_warmup_until": -1e9, "score_scaling": "scale"},
        "kl": {"placement": "loss", "penalty": "k3"},
        "optimizer": FAST | {"value_learning_rate": 3e-2},
        "ptx": PTX,
    }
    one, other = (make_trainer(texts=TEXTS, **sections) for _ in range(2))
    for trainer in (one, other):
        trainer.prompts = NoPrompts()  # type: ignore[assignment]
    one.learning_rate_factor = 0.5
    for _ in range(2):
        step(one)
    values, tensors = copy.deepcopy(capture(one))  # as through a file: nothing shared
    other.models.policy.language.load_state_dict(one.models.policy.language.state_dict())
    restore(other, values, tensors)
    assert (other.learning_rate_factor, other.critic_ready) == (0.5, True)
    for _ in range(2):
        ours, theirs = (step(trainer)[1] for trainer in (other, one))
        assert {k: v for k, v in ours.items() if "memory" not in k} == {
            k: v for k, v in theirs.items() if "memory" not in k
        }


def test_a_checkpoint_within_the_warm_up_has_no_moments_of_the_policy() -> None:
    sections: dict[str, Any] = {"ppo": {"critic_warmup_steps": 2}, "optimizer": FAST}
    one, other = make_trainer(**sections), make_trainer(**sections)
    for trainer in (one, other):
        trainer.prompts = NoPrompts()  # type: ignore[assignment]
    step(one)
    restore(other, *copy.deepcopy(capture(one)))
    for _ in range(2):
        step(one)
        step(other)
    assert unchanged(snapshot(one), snapshot(other)) == set(snapshot(one))


# --- from a rollout ----------------------------------------------------------------------------------------------


def test_a_rollout_is_learnt_from_without_its_dropped_responses() -> None:
    """Dense rewards go to their tokens, the rest of the score to the last one, and a dropped response nowhere."""
    trainer = make_trainer(kl={"init_kl_coef": 0.0}, ppo={"missing_eos_penalty": 0.5})
    scores = Scores(
        total=[9.0, math.nan, 9.0, 9.0],
        tail=[1.0, math.nan, 0.5, 2.0],
        token_rewards=[[0.1, 0.2, 0.3], None, None, [1.0, -1.0]],
        components={},
        dropped=[False, True, False, False],
    )
    rollout = Rollout(
        exchanges=[],
        sequences=responses(),
        sampler_logprobs=torch.zeros(4, 4),
        finished=[True, False, False, True],
        scores=scores,
    )
    done = trainer.learn(rollout, Stopwatch())
    wanted = [[0.1, 0.2, 1.3, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1.0, 1.0, 0, 0]]
    assert done.batch.rewards.tolist() == [pytest.approx(row) for row in wanted]
    assert done.batch.scores.tolist() == pytest.approx([1.6, 0.0, 0.0, 2.0])
    assert trainer.scalars(done)["ppo/mean_scores"] == pytest.approx(3.6 / 3)
