"""The trainer: collect -> evaluate -> advantages -> optimise -> summarise, once per step.

`steps()` is an iterator: the caller owns the loop, the trainer owns the maths. Legend: B sequences, T response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor

from ppo_engine.batch import Advantages, RolloutBatch, Sequences
from ppo_engine.config import KLPenalty, KLPlacement, TrainConfig
from ppo_engine.data.prompts import PromptSource
from ppo_engine.events import Phase, Sample
from ppo_engine.experience.evaluate import Evaluation, evaluate
from ppo_engine.experience.evaluation import Evaluator
from ppo_engine.experience.rollout import Responder, Rollout, end_token_ids, repeated
from ppo_engine.experience.samples import samples_of, token_values
from ppo_engine.maths.advantages import explained_variance
from ppo_engine.maths.kl import controller
from ppo_engine.maths.logprobs import Distribution
from ppo_engine.maths.shaping import RunningMoments, per_token_rewards
from ppo_engine.models.compute import ComputeWeights
from ppo_engine.models.networks import Models
from ppo_engine.ranks import ALONE, Ranks
from ppo_engine.rewards import Scorer
from ppo_engine.runtime import compute_dtype, peak_memory_bytes
from ppo_engine.stats import StepStats
from ppo_engine.summary import (
    Stopwatch,
    histograms,
    length_scalars,
    objective_scalars,
    reward_scalars,
    sampling_scalars,
    sequence_sums,
    trained_sums,
    update_scalars,
)
from ppo_engine.update.objective import update_rules
from ppo_engine.update.optim import GuardedStepper, Rates, learning_rates, make_optimizer, set_rates
from ppo_engine.update.optimise import Optimiser, UpdateRecord
from ppo_engine.update.ptx import TextObjective, TextSource
from ppo_engine.update.targets import advantages, shape_scores, token_matrix, trainable, without_rows


@dataclass(frozen=True, slots=True)
class Step:
    """What one step leaves behind."""

    stats: StepStats
    samples: list[Sample]


@dataclass(slots=True)
class Update:
    """What `Trainer.update` computed, for the summary."""

    batch: RolloutBatch
    targets: Advantages
    record: UpdateRecord
    kl_coef: float
    rates: Rates
    """As used: the policy's is 0 during the critic's warm-up."""
    clock: Stopwatch


def _ignore(phase: Phase) -> None:
    """Default listener: nobody wants to know."""


@dataclass
class Trainer:
    """PPO on one policy. Owns every number that changes: weights, moments, KL coefficient, random states, cursor."""

    config: TrainConfig
    accelerator: Accelerator
    models: Models
    prompts: PromptSource
    scorer: Scorer
    on_phase: Callable[[Phase], None] = _ignore
    evaluator: Evaluator | None = None
    texts: TextSource | None = None
    """What the ptx loss reads."""
    ranks: Ranks = ALONE
    step: int = 0
    moments: RunningMoments = field(default_factory=RunningMoments)
    critic_ready: bool = False
    """The critic's warm-up ended early: its values explained enough of the returns."""

    def __post_init__(self) -> None:
        config, policy = self.config, self.models.policy
        self.distribution = Distribution(
            temperature=config.generation.temperature,
            min_new_tokens=config.generation.min_new_tokens,
            eos_ids=end_token_ids(policy.language, self.models.tokenizer),
        )
        optimizer = make_optimizer(policy.policy_parameters(), policy.value_parameters(), config.optimizer)
        self.optimizer = self.accelerator.prepare(optimizer)
        device = self.accelerator.device
        dtype = compute_dtype(config.resources, device)
        self.models.hold_frozen(dtype)
        modules = [policy.language] if policy.critic is None else [policy.language, policy.critic]
        self.weights = ComputeWeights(modules, dtype)
        limit = config.optimizer.max_grad_norm
        stepper = GuardedStepper(self.accelerator, self.optimizer, self.weights, limit, self.ranks)
        self.optimiser = Optimiser(
            policy,
            stepper,
            update_rules(config),
            self.distribution,
            self._text_objective(),
            None if self.models.reference is None else self.models.reference.head,
            self.ranks,
        )
        self.kl = controller(config.kl.init_kl_coef, config.kl.controller)
        self.sampling = torch.Generator(device).manual_seed(config.seed)
        self.shuffling = torch.Generator().manual_seed(config.seed)
        self.responder = Responder(
            language=policy.language,
            tokenizer=self.models.tokenizer,
            config=config.generation,
            distribution=self.distribution,
            generator=self.sampling,
            ranks=self.ranks,
        )
        self.rollout: Rollout | None = None
        """Responses of the step under way, for inspection."""
        self.batch: RolloutBatch | None = None
        """What the optimiser works on in the step under way, for inspection."""
        self.learning_rate_factor = 1.0
        """What rollbacks made of the learning rates."""

    def steps(self) -> Iterator[Step]:
        """Train to the configured number of steps; each item is one finished step."""
        while self.step < self.config.ppo.steps:
            clock = Stopwatch()
            self.on_phase(Phase.ROLLOUT)
            rollout = self.collect(clock)
            self.on_phase(Phase.OPTIMISE)
            yield self.summarise(rollout, self.learn(rollout, clock))

    def collect(self, clock: Stopwatch) -> Rollout:
        """Draw prompts, sample responses to each, and score them."""
        ppo = self.config.ppo
        self.rollout = self.batch = None
        prompts = self.prompts.draw(math.ceil(ppo.batch_size / ppo.samples_per_prompt))
        with self.weights.applied():
            answered = repeated(prompts, ppo.samples_per_prompt, ppo.batch_size)
            self.rollout = self.responder.collect(answered, self.scorer, clock)
        return self.rollout

    def evaluate(self) -> tuple[dict[str, float], list[Sample]]:
        """Answer the evaluation set, with the moving average if there is one. Changes no state of the training.

        Returns:
            Statistics under `eval/*`, and samples.
        """
        if self.evaluator is None:
            raise ValueError("the run has no evaluation")
        with self.weights.applied(), self.models.averaged():
            return self.evaluator.run(self.responder, self.scorer, self.measure)

    def measure(self, sequences: Sequences, distribution: Distribution) -> Evaluation:
        """What the policy as it is, the critic and the reference say of sequences; KL is k1."""
        return evaluate(
            self.models.policy,
            self.models.reference,
            sequences,
            distribution,
            KLPenalty.KL,
            microbatch_size=self.config.microbatch_size,
            ranks=self.ranks,
        )

    def begin_again(self, learning_rate_factor: float, times: int) -> None:
        """After a rollback: a smaller learning rate, and other samples than those that led into trouble."""
        self.learning_rate_factor = learning_rate_factor
        self.sampling.manual_seed(self.config.seed + times)
        self.shuffling.manual_seed(self.config.seed + times)

    def learn(self, rollout: Rollout, clock: Stopwatch) -> Update:
        """One PPO update on a rollout, without the responses that its scorer dropped; ends the step. As `update`."""
        scores, mask = rollout.scores, rollout.sequences.response_mask
        return self.update(
            without_rows(rollout.sequences, scores.dropped),
            scores.tail,
            token_rewards=None if scores.token_rewards is None else token_matrix(scores.token_rewards, mask),
            truncated=[not finished for finished in rollout.finished],
            clock=clock,
        )

    def update(
        self,
        sequences: Sequences,
        raw_scores: Sequence[float],
        *,
        token_rewards: Tensor | None = None,
        truncated: Sequence[bool] | None = None,
        permutations: Callable[[int], Sequence[int]] | None = None,
        clock: Stopwatch | None = None,
    ) -> Update:
        """One PPO update on given responses and their raw scores; ends the step.

        A response whose `response_mask` is empty is not trained on, and no number of this update depends on it.

        Args:
            raw_scores: one per response, for its last token; scaled, clipped and shaped.
            token_rewards: dense rewards [B, T], added to the tokens as they are.
            truncated: whether each response was cut off, and did not end by itself; none was unless given.
            permutations: order of the minibatches, for replaying a recorded step; random by default.

        Raises:
            NonFinite: a loss, score, advantage or gradient is not finite.
            NothingToTrainOn: no response has a token to train on.
        """
        clock = clock or Stopwatch()
        truncated = [False] * len(sequences) if truncated is None else truncated
        sequences = trainable(sequences, truncated, self.config.ppo)
        batch = self.batch = self._evaluate(sequences, raw_scores, truncated, token_rewards, clock)
        with clock.phase("compute_advantages"):
            targets = advantages(batch, self.config.ppo)
        warming_up = self._warming_up(batch, targets)
        rates = self._rates(warming_up=warming_up)
        kl_coef = self.kl.value
        with clock.phase("optimize_step"), self.weights.applied():
            order = permutations or self._permutation
            record = self.optimiser.run(batch, targets, order, kl_coef=kl_coef, critic_only=warming_up)
        if not warming_up:  # the policy stands still then: its KL is no measure of the coefficient
            kl = trained_sums(batch.kl, batch.mask)
            self.kl.update(float(kl.mean()), len(kl))
        self.step += 1
        self.models.end_step(self.step, self.config.model)
        return Update(batch, targets, record, kl_coef, rates, clock)

    def _warming_up(self, batch: RolloutBatch, targets: Advantages) -> bool:
        """Whether this step trains the critic alone; from the first step with a good enough critic on, none does."""
        ppo = self.config.ppo
        if self.step >= ppo.critic_warmup_steps or self.critic_ready:
            return False
        explained = explained_variance(batch.old_values, targets.returns, batch.mask)
        if ppo.critic_warmup_until is not None and explained is not None:
            self.critic_ready = explained > ppo.critic_warmup_until
        return not self.critic_ready

    def _rates(self, *, warming_up: bool) -> Rates:
        """Set the optimizer's rates for this step; returns those that will be used."""
        rates = learning_rates(self.config.optimizer, self.step, self.config.ppo.steps, self.learning_rate_factor)
        set_rates(self.optimizer, rates)
        return Rates(0.0, rates.critic) if warming_up else rates

    def _text_objective(self) -> TextObjective | None:
        if self.config.ptx is None or self.texts is None:
            return None
        ptx = self.config.ptx
        return TextObjective(
            self.texts,
            self._text_logprobs,
            ptx.coef,
            ptx.batch_size,
            self.config.microbatch_size,
            self.accelerator.device,
            self.ranks,
        )

    def _text_logprobs(self, texts: Sequences) -> Tensor:
        logprobs: Tensor = self.models.policy.language(texts, Distribution())[0]
        return logprobs

    def _evaluate(
        self,
        sequences: Sequences,
        raw_scores: Sequence[float],
        truncated: Sequence[bool],
        token_rewards: Tensor | None,
        clock: Stopwatch,
    ) -> RolloutBatch:
        """Complete the rollout batch: logprobs, values and rewards."""
        kl = self.config.kl
        with clock.phase("forward_pass"), self.weights.applied():
            found = evaluate(
                self.models.policy,
                self.models.reference,
                sequences,
                self.distribution,
                kl.penalty,
                microbatch_size=self.config.microbatch_size,
                ranks=self.ranks,
            )
        with clock.phase("compute_rewards"):
            raw = torch.tensor(raw_scores, dtype=torch.float32, device=found.logprobs.device)
            scores = shape_scores(raw, sequences, truncated, self.moments, self.config)
            kl_coef = self.kl.value if kl.placement is KLPlacement.REWARD else 0.0
            rewards = per_token_rewards(scores, found.kl, sequences.response_mask, kl_coef, token_rewards)
        return RolloutBatch(
            sequences=found.sequences,
            old_logprobs=found.logprobs,
            ref_logprobs=found.ref_logprobs,
            ref_hidden=found.ref_hidden if kl.placement is KLPlacement.LOSS else None,
            kl=found.kl,
            old_values=found.values,
            scores=scores if token_rewards is None else scores + sequence_sums(token_rewards, sequences.response_mask),
            rewards=rewards,
        )

    def _permutation(self, count: int) -> list[int]:
        return torch.randperm(count, generator=self.shuffling).tolist()

    def summarise(self, rollout: Rollout, update: Update) -> Step:
        """The statistics and samples of the step that `update` ended."""
        clock, batch = update.clock, update.batch
        with clock.phase("calc_stats"):
            scalars = self.scalars(update) | reward_scalars(rollout.scores)
            scalars |= sampling_scalars(rollout.finished, rollout.sampler_logprobs, batch)
            distributions = histograms(batch, update.targets, update.record, rollout.scores.kept)
        total = clock.total()
        tokens = float(batch.sequences.response_present.sum())
        scalars |= {"time/ppo/total": total, "tokens/per_second": tokens / total, **clock.seconds}
        stats = StepStats(step=self.step, scalars=scalars, histograms=distributions)
        return Step(stats, self._samples(rollout, update))

    def scalars(self, update: Update) -> dict[str, float]:
        """The scalars that follow from the update alone."""
        kl_in_reward = self.config.kl.placement is KLPlacement.REWARD
        return {
            **objective_scalars(update.batch, update.kl_coef, kl_in_reward=kl_in_reward),
            **length_scalars(update.batch),
            **update_scalars(update.record, update.batch, update.targets),
            "ppo/learning_rate": update.rates.policy,
            "ppo/value_learning_rate": update.rates.critic,
            "memory/peak_bytes": max(self.ranks.exchange(float(peak_memory_bytes(self.accelerator.device)))),
        }

    def _samples(self, rollout: Rollout, update: Update) -> list[Sample]:
        batch, logging = update.batch, self.config.logging
        kl = sequence_sums(batch.kl, batch.mask).tolist() if batch.ref_logprobs is not None else None
        samples = samples_of(rollout, kl, logging.samples_per_step)
        if not logging.token_values:
            return samples
        values = [token_values(i, batch, update.targets, self.models.tokenizer) for i in range(len(samples))]
        return [sample.model_copy(update={"token_values": v}) for sample, v in zip(samples, values, strict=True)]
