"""One update with every switch on, against a loop over single sequences, and laid out in every way it can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch, Sequences, make_sequences
from ppo_engine.summary import Stopwatch
from ppo_engine.trainer import Trainer
from ppo_engine.update.targets import advantages, trainable
from tests.support.tolerances import assert_close
from tests.support.trainers import PAD, make_trainer

PROMPTS = [[3, 4], [5, 6, 7, 8, 9], [10], [11, 12, 13], [14, 15], [2, 3, 4]]
RESPONSES = [[4, 5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20], [1, 2, 3, 4, 5]]
MASKS = [[1, 1, 1, 1], [1], [1, 1, 0, 0, 1, 1, 1], [1, 1], [1, 1, 1], [1, 1, 1, 1, 0]]
TRUNCATED = [False, False, True, False, True, False]
DROPPED = 4
SCORES = [1.0, -0.5, 2.0, 0.3, math.nan, -1.5]
TEXTS = ["abcdefghijklmnopq", "ace", "bdfhj", "kk", "lmnop"]
SIZE = len(PROMPTS)

PPO = {
    "batch_size": SIZE,
    "ppo_epochs": 1,
    "clip_range": 0.1,
    "clip_range_high": 0.3,
    "dual_clip": 1.5,
    "value_clip_range": 0.3,
    "huber_delta": 0.4,
    "vf_coef": 0.7,
    "entropy_coef": 0.05,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "value_gae_lambda": 0.8,
    "length_adaptive_lambda": 0.6,
    "whiten_rewards": True,
    "score_scaling": "normalise",
    "score_clip": 1.2,
    "missing_eos_penalty": 0.25,
    "overlong_buffer_tokens": 4,
    "overlong_penalty": 0.5,
    "ratio_threshold": 1e9,
}
EVERYTHING: dict[str, Any] = {
    "ppo": PPO,
    "kl": {"penalty": "k3", "placement": "loss", "init_kl_coef": 0.15},
    "ptx": {"texts": {"inline": ["unused"]}, "coef": 0.6, "batch_size": 4},
    "generation": {"max_new_tokens": 7, "temperature": 0.8},
}


@dataclass
class Recorder:
    """Takes the place of the stepper: keeps the gradients of every optimizer step, and changes no weight."""

    trainer: Trainer
    gradients: list[dict[str, Tensor]] = field(default_factory=list)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> float:
        named = self.trainer.models.policy.named_parameters()
        self.gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        self.discard()
        return 1.0

    def discard(self) -> None:
        self.trainer.optimizer.zero_grad(set_to_none=True)


def identity(count: int) -> list[int]:
    return list(range(count))


def noise(row: int, column: int) -> float:
    """What the old policy said otherwise: enough to reach every branch of the losses."""
    return 0.8 * math.sin(7.0 * row + 3.0 * column)


def sequences(rows: list[int], left: int = 0, right: int = 0) -> Sequences:
    """The responses in an order, with more padding than they need; the last of them without a token to train on."""
    masks = [[0] * len(MASKS[row]) if row == DROPPED else MASKS[row] for row in rows]
    made = make_sequences([PROMPTS[r] for r in rows], [RESPONSES[r] for r in rows], pad_id=PAD, response_masks=masks)

    def wide(x: Tensor, before: int, after: int) -> Tensor:
        return torch.nn.functional.pad(x, (before, after), value=9 if x.dtype is torch.long else False)

    return Sequences(
        prompt_ids=wide(made.prompt_ids, left, 0),
        prompt_mask=wide(made.prompt_mask, left, 0),
        response_ids=wide(made.response_ids, 0, right),
        response_present=wide(made.response_present, 0, right),
        response_mask=wide(made.response_mask, 0, right),
    )


def dense(rows: list[int], width: int) -> Tensor:
    return torch.tensor([[0.1 * noise(row, column + 50) for column in range(width)] for row in rows])


@dataclass
class Outcome:
    scalars: dict[str, float]
    gradients: list[dict[str, Tensor]]
    batch: RolloutBatch
    targets: Advantages


def update(
    rows: list[int] | None = None,
    *,
    left: int = 0,
    right: int = 0,
    order: Callable[[int], list[int]] = identity,
    sections: dict[str, Any] = EVERYTHING,
    **ppo: Any,
) -> Outcome:
    """The gradients and statistics of one update; `ppo` overrides the sizes."""
    rows = identity(SIZE) if rows is None else rows
    trainer = make_trainer(texts=TEXTS, **sections | {"ppo": sections["ppo"] | ppo})
    recorder = Recorder(trainer)
    object.__setattr__(trainer.optimiser, "stepper", recorder)
    evaluate = trainer._evaluate

    def disturbed(*arguments: Any) -> RolloutBatch:
        batch = evaluate(*arguments)
        shape = batch.mask.shape
        shift = torch.tensor([[noise(row, column) for column in range(shape[1])] for row in rows])
        return replace(batch, old_logprobs=batch.old_logprobs + shift, old_values=batch.old_values - shift)

    trainer._evaluate = disturbed  # type: ignore[method-assign]
    batch = sequences(rows, left, right)
    done = trainer.update(
        batch,
        [SCORES[row] for row in rows],
        token_rewards=dense(rows, batch.response_mask.shape[1]),
        truncated=[TRUNCATED[row] for row in rows],
        permutations=order,
    )
    scalars = {key: value for key, value in trainer.scalars(done).items() if not key.startswith("memory/")}
    return Outcome(scalars, recorder.gradients, done.batch, done.targets)


def assert_same(one: Outcome, other: Outcome, *, without: tuple[str, ...] = ()) -> None:
    kept = {key: value for key, value in other.scalars.items() if not key.startswith(without or ("none",))}
    assert {key: one.scalars[key] for key in kept} == pytest.approx(kept, rel=2e-5, abs=2e-5)
    assert len(one.gradients) == len(other.gradients)
    for ours, theirs in zip(one.gradients, other.gradients, strict=True):
        assert set(ours) == set(theirs)
        for name, gradient in theirs.items():
            assert_close(ours[name], gradient, 2e-5)


@pytest.fixture(scope="module")
def whole() -> Outcome:
    return update()


@pytest.mark.parametrize("microbatch", [1, 2, 4, 5])
def test_any_split_into_microbatches_gives_the_same_numbers(whole: Outcome, microbatch: int) -> None:
    assert_same(update(microbatch_size=microbatch), whole)


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 4), (2, 5)])
def test_padding_on_either_side_changes_nothing(whole: Outcome, left: int, right: int) -> None:
    assert_same(update(left=left, right=right, microbatch_size=4), whole)


def test_the_order_of_the_sequences_changes_nothing(whole: Outcome) -> None:
    assert_same(update([3, 5, 0, 4, 2, 1], microbatch_size=4), whole)


def test_a_dropped_response_is_as_if_it_had_not_been_sampled(whole: Outcome) -> None:
    without = [row for row in range(SIZE) if row != DROPPED]
    assert_same(update(without, batch_size=SIZE - 1), whole, without=("tokens/",))


def test_masked_truncated_responses_are_as_if_they_had_not_been_sampled() -> None:
    finished = [row for row in range(SIZE) if not TRUNCATED[row]]
    sections = EVERYTHING | {"ppo": {k: v for k, v in PPO.items() if k != "missing_eos_penalty"}}
    masked = update(mask_truncated=True, sections=sections)
    assert_same(update(finished, batch_size=len(finished), sections=sections), masked, without=("tokens/",))


@pytest.mark.parametrize(("minibatch", "accumulate", "steps"), [(4, 1, 2), (5, 1, 2), (1, 4, 2), (2, 2, 2), (4, 3, 1)])
def test_batches_that_do_not_divide(minibatch: int, accumulate: int, steps: int) -> None:
    """Each optimizer step is the plain mean of its minibatches, and one of nothing but dropped responses is no part."""
    sizes = {"minibatch_size": minibatch, "gradient_accumulation_steps": accumulate}
    whole, split = update(**sizes), update(**sizes, microbatch_size=1)
    assert_same(split, whole)
    assert len(whole.gradients) == steps
    assert all(math.isfinite(value) for value in whole.scalars.values())


def test_accumulated_gradients_are_the_mean_over_the_minibatches_that_train() -> None:
    """Minibatches of one, in two groups of three: the second has the dropped response, so it is a mean over two."""
    alone = EVERYTHING | {"ptx": None}
    single = update(sections=alone, minibatch_size=1).gradients
    grouped = update(sections=alone, minibatch_size=1, gradient_accumulation_steps=3).gradients
    assert (len(single), len(grouped)) == (SIZE - 1, 2)
    for gradients, parts in zip(grouped, (single[:3], single[3:]), strict=True):
        for name, gradient in gradients.items():
            assert_close(gradient, sum(part[name] for part in parts) / len(parts), 2e-5)


# --- an oracle of its own: one sequence at a time, one token at a time -------------------------------------------


def predictions(model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float) -> Tensor:
    """Log-probabilities of every next token at the response's places [T, V], from the plain model."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0]
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


def total_loss(trainer: Trainer, batch: RolloutBatch, targets: Advantages) -> Tensor:
    """The loss of the paper's equations over single tokens, with the numbers of PPO spelled out."""
    policy, reference, total, count = trainer.models.policy, trainer.models.reference, torch.zeros(()), 0
    assert reference is not None
    for row, (prompt, response, mask) in enumerate(zip(PROMPTS, RESPONSES, MASKS, strict=True)):
        table = predictions(policy.language.model, prompt, response, 0.8)
        ref_table = predictions(reference.model, prompt, response, 0.8).detach()
        states = policy.language.model.model(torch.tensor([[*prompt, *response]]))[0][0, len(prompt) - 1 : -1]
        for t, kept in enumerate(mask):
            if not kept or row == DROPPED:
                continue
            new, ref = table[t, response[t]], ref_table[t, response[t]]
            advantage, old = float(targets.advantages[row, t]), float(batch.old_logprobs[row, t])
            ratio = (new - old).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.3) * advantage)
            if advantage < 0:
                gain = torch.maximum(gain, torch.tensor(1.5 * advantage))
            value, old_value = policy.value_head(states[t]).squeeze(), float(batch.old_values[row, t])
            aim = targets.returns[row, t]
            errors = [(v - aim).abs() for v in (value, value.clamp(old_value - 0.3, old_value + 0.3))]
            critic = torch.maximum(*[torch.where(e > 0.4, 0.4 * (e - 0.2), 0.5 * e * e) for e in errors])
            entropy = -(table[t].exp() * table[t]).sum()
            k3 = (ref - new).exp() - (ref - new) - 1
            total, count = total - gain + 0.7 * critic - 0.05 * entropy + 0.15 * k3, count + 1
    return total / count


def text_loss(trainer: Trainer, places: list[int]) -> Tensor:
    """Mean -logprob of the tokens after the first, texts cut at 12 tokens and ended by 22 where not cut."""
    total, count = torch.zeros(()), 0
    for place in places:
        tokens = [*(ord(letter) - ord("a") + 1 for letter in TEXTS[place]), 22][:12]
        table = trainer.models.policy.language.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for t in range(1, len(tokens)):
            total, count = total - table[t - 1, tokens[t]], count + 1
    return total / count


def test_everything_together_is_what_the_equations_say(whole: Outcome) -> None:
    trainer = make_trainer(texts=TEXTS, **EVERYTHING)
    assert trainer.texts is not None
    places = trainer.texts._cursor.draw(4)
    ptx = text_loss(trainer, places)
    loss = total_loss(trainer, whole.batch, whole.targets) + 0.6 * ptx
    loss.backward()
    assert whole.scalars["ppo/loss/total"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert whole.scalars["ppo/loss/ptx"] == pytest.approx(float(ptx.detach()), rel=1e-5)
    assert whole.scalars["objective/ptx_perplexity"] == pytest.approx(math.exp(float(ptx.detach())), rel=1e-4)
    for name, parameter in trainer.models.policy.named_parameters():
        assert parameter.grad is not None
        assert_close(whole.gradients[0][name], parameter.grad, 2e-5)


OFF: dict[str, Any] = {
    "clip_range": 10.0,
    "clip_range_high": None,
    "dual_clip": None,
    "value_clip_range": None,
    "huber_delta": None,
    "vf_coef": 0.1,
    "entropy_coef": 0.0,
    "gamma": 1.0,
    "value_gae_lambda": None,
    "length_adaptive_lambda": None,
    "whiten_rewards": False,
    "whiten_advantages": False,
    "score_scaling": "scale",
    "score_clip": None,
    "missing_eos_penalty": None,
    "overlong_buffer_tokens": None,
    "overlong_penalty": 0.1,
}


@pytest.mark.parametrize("switch", OFF)
def test_every_switch_bites(whole: Outcome, switch: str) -> None:
    """One that changes nothing here would be compared with nothing above."""
    other = update(**{switch: OFF[switch]})
    moved = max(float((other.gradients[0][name] - g).abs().max()) for name, g in whole.gradients[0].items())
    assert moved > 1e-4


# --- targets: scores to advantages over floats ---------------------------------------------------------------------


def std(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def whitened(rows: list[list[float]], *, shift: bool) -> list[list[float]]:
    flat = [v for row in rows for v in row]
    mean, variance = sum(flat) / len(flat), std(flat) ** 2
    return [[(v - mean) / math.sqrt(variance + 1e-8) + (0.0 if shift else mean) for v in row] for row in rows]


def loop_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    after = [*values[1:], 0.0]
    delta = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))]


def test_scores_become_advantages_as_the_equations_say(whole: Outcome) -> None:
    rows = [row for row in range(SIZE) if row != DROPPED]
    raw = [SCORES[row] for row in rows]
    mean, deviation = sum(raw) / len(raw), std(raw)
    earned, rewards, values = [], [], []
    for row in rows:
        score = min(max((SCORES[row] - mean) / deviation, -1.2), 1.2)
        score -= 0.25 if TRUNCATED[row] else 0.0
        score -= 0.5 * min(max((len(RESPONSES[row]) - 3) / 4, 0.0), 1.0)
        kept = [t for t, m in enumerate(MASKS[row]) if m]
        row_rewards = [0.1 * noise(row, t + 50) for t in kept]
        earned.append(score + sum(row_rewards))
        row_rewards[-1] += score
        rewards.append(row_rewards)
        values.append([float(whole.batch.old_values[row, t]) for t in kept])
    assert whole.batch.scores[rows].tolist() == pytest.approx(earned, rel=1e-5)
    rewards = whitened(rewards, shift=False)
    lams = [min(max(1 - 1 / (0.6 * len(r)), 0.0), 1.0) for r in rewards]
    raw_advantages = [loop_gae(r, v, 0.97, lam) for r, v, lam in zip(rewards, values, lams, strict=True)]
    wanted = whitened(raw_advantages, shift=True)
    for i, row in enumerate(rows):
        kept_mask = whole.batch.mask[row]
        assert whole.targets.advantages[row][kept_mask].tolist() == pytest.approx(wanted[i], rel=1e-4, abs=1e-5)
        returns = [a + v for a, v in zip(loop_gae(rewards[i], values[i], 0.97, 0.8), values[i], strict=True)]
        assert whole.targets.returns[row][kept_mask].tolist() == pytest.approx(returns, rel=1e-4, abs=1e-5)
    assert whole.scalars["ppo/mean_scores"] == pytest.approx(sum(earned) / len(earned), rel=1e-5)


def test_without_whitening_advantages_are_those_of_gae() -> None:
    trainer = make_trainer(ppo={"whiten_advantages": False, "batch_size": SIZE})
    batch = trainer._evaluate(sequences(identity(SIZE)), SCORES, TRUNCATED, None, Stopwatch())
    found = advantages(batch, trainer.config.ppo)
    kept = batch.mask[0]
    wanted = loop_gae(batch.rewards[0][kept].tolist(), batch.old_values[0][kept].tolist(), 1.0, 0.95)
    assert found.advantages[0][kept].tolist() == pytest.approx(wanted, rel=1e-5)
    assert_close(found.returns[0][kept], found.advantages[0][kept] + batch.old_values[0][kept])


def test_the_returns_keep_gae_lambda_when_only_the_advantages_lambda_adapts() -> None:
    plain = make_trainer(ppo={"batch_size": SIZE})
    adaptive = make_trainer(ppo={"batch_size": SIZE, "length_adaptive_lambda": 0.3})
    batch = plain._evaluate(sequences(identity(SIZE)), SCORES, TRUNCATED, None, Stopwatch())
    one, other = advantages(batch, plain.config.ppo), advantages(batch, adaptive.config.ppo)
    assert torch.equal(one.returns, other.returns)
    assert not torch.allclose(one.advantages, other.advantages)


def test_masking_truncated_responses_is_off_unless_asked_for() -> None:
    given = sequences(identity(SIZE))
    assert trainable(given, TRUNCATED, make_trainer().config.ppo) is given
