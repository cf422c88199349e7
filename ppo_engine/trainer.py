"""The trainer: collect -> evaluate -> advantages -> optimise -> summarise, once per step.

`steps()` is an iterator: the caller owns the loop, the trainer owns the maths. Legend: B sequences, T response tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator

from ppo_engine.advantages import gae
from ppo_engine.batch import Advantages, RolloutBatch, Sequences
from ppo_engine.config import KLPenalty, PPOConfig, TrainConfig
from ppo_engine.errors import NonFinite
from ppo_engine.evaluate import Evaluation, evaluate
from ppo_engine.evaluation import Evaluator
from ppo_engine.events import Phase, Sample
from ppo_engine.kl import controller
from ppo_engine.logprobs import Distribution
from ppo_engine.masked import whiten
from ppo_engine.networks import Models
from ppo_engine.optim import GuardedStepper, learning_rate, make_optimizer
from ppo_engine.optimise import Optimiser, UpdateRecord, UpdateRules
from ppo_engine.prompts import PromptSource
from ppo_engine.rewards import Scorer
from ppo_engine.rollout import Responder, Rollout, end_token_ids, repeated
from ppo_engine.runtime import peak_memory_bytes
from ppo_engine.samples import samples_of, token_values
from ppo_engine.shaping import RunningMoments, per_token_rewards, process_scores
from ppo_engine.stats import StepStats
from ppo_engine.summary import (
    Stopwatch,
    histograms,
    length_scalars,
    objective_scalars,
    reward_scalars,
    sampling_scalars,
    sequence_sums,
    update_scalars,
)


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
    learning_rate: float
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
    step: int = 0
    moments: RunningMoments = field(default_factory=RunningMoments)

    def __post_init__(self) -> None:
        config, policy = self.config, self.models.policy
        self.distribution = Distribution(
            temperature=config.generation.temperature,
            min_new_tokens=config.generation.min_new_tokens,
            eos_ids=end_token_ids(policy.language, self.models.tokenizer),
        )
        optimizer = make_optimizer(policy, config.optimizer)
        self.wrapped, self.optimizer = self.accelerator.prepare(policy, optimizer)
        stepper = GuardedStepper(self.accelerator, policy, self.optimizer, config.optimizer.max_grad_norm)
        self.optimiser = Optimiser(self.wrapped, stepper, update_rules(config), self.distribution)
        self.kl = controller(config.kl.init_kl_coef, config.kl.controller)
        device = self.accelerator.device
        self.sampling = torch.Generator(device).manual_seed(config.seed)
        self.shuffling = torch.Generator().manual_seed(config.seed)
        self.responder = Responder(
            language=policy.language,
            tokenizer=self.models.tokenizer,
            config=config.generation,
            distribution=self.distribution,
            generator=self.sampling,
        )
        self.rollout: Rollout | None = None
        """Responses of the step under way, for inspection."""
        self.batch: RolloutBatch | None = None
        """What the optimiser works on in the step under way, for inspection."""
        self.learning_rate_factor = 1.0
        """What rollbacks made of the learning rate."""

    def steps(self) -> Iterator[Step]:
        """Train to the configured number of steps; each item is one finished step."""
        while self.step < self.config.ppo.steps:
            clock = Stopwatch()
            self.on_phase(Phase.ROLLOUT)
            rollout = self.collect(clock)
            self.on_phase(Phase.OPTIMISE)
            update = self.update(rollout.sequences, rollout.scores.total, clock=clock)
            yield self.summarise(rollout, update)

    def collect(self, clock: Stopwatch) -> Rollout:
        """Draw prompts, sample responses to each, and score them."""
        ppo = self.config.ppo
        self.rollout = self.batch = None
        prompts = self.prompts.draw(math.ceil(ppo.batch_size / ppo.samples_per_prompt))
        with self.accelerator.autocast():
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
        with self.models.averaged(), self.accelerator.autocast():
            return self.evaluator.run(self.responder, self.scorer, self._measure)

    def _measure(self, sequences: Sequences, distribution: Distribution) -> Evaluation:
        return evaluate(
            self.models.policy,
            self.models.reference,
            sequences,
            distribution,
            KLPenalty.KL,
            microbatch_size=self.config.microbatch_size,
        )

    def begin_again(self, learning_rate_factor: float, times: int) -> None:
        """After a rollback: a smaller learning rate, and other samples than those that led into trouble."""
        self.learning_rate_factor = learning_rate_factor
        self.sampling.manual_seed(self.config.seed + times)
        self.shuffling.manual_seed(self.config.seed + times)

    def update(
        self,
        sequences: Sequences,
        raw_scores: Sequence[float],
        *,
        permutations: Callable[[int], Sequence[int]] | None = None,
        clock: Stopwatch | None = None,
    ) -> Update:
        """One PPO update on given responses and their raw scores; ends the step.

        Args:
            permutations: order of the minibatches, for replaying a recorded step; random by default.

        Raises:
            NonFinite: a loss, score, advantage or gradient is not finite.
        """
        clock = clock or Stopwatch()
        rate = self.learning_rate_factor * learning_rate(self.config.optimizer, self.step, self.config.ppo.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self._evaluate(sequences, raw_scores, clock)
        self.batch = batch
        with clock.phase("compute_advantages"):
            targets = advantages(batch, self.config.ppo)
        with clock.phase("optimize_step"):
            record = self.optimiser.run(batch, targets, permutations or self._permutation)
        kl_coef = self.kl.value
        self.kl.update(float(sequence_sums(batch.kl, batch.mask).mean()), len(sequences))
        self.step += 1
        self.models.end_step(self.step, self.config.model)
        return Update(batch, targets, record, kl_coef, rate, clock)

    def _evaluate(self, sequences: Sequences, raw_scores: Sequence[float], clock: Stopwatch) -> RolloutBatch:
        ppo = self.config.ppo
        with clock.phase("forward_pass"), self.accelerator.autocast():
            found = evaluate(
                self.models.policy,
                self.models.reference,
                sequences,
                self.distribution,
                self.config.kl.penalty,
                microbatch_size=self.config.microbatch_size,
            )
        with clock.phase("compute_rewards"):
            raw = torch.tensor(raw_scores, dtype=torch.float32, device=found.logprobs.device)
            scores = process_scores(raw, self.moments, ppo.score_scaling, ppo.score_clip)
            rewards = per_token_rewards(scores, found.kl, sequences.response_mask, self.kl.value)
        return RolloutBatch(
            sequences=sequences,
            old_logprobs=found.logprobs,
            ref_logprobs=found.ref_logprobs,
            kl=found.kl,
            old_values=found.values,
            scores=scores,
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
        return {
            **objective_scalars(update.batch, update.kl_coef),
            **length_scalars(update.batch),
            **update_scalars(update.record, update.batch, update.targets),
            "ppo/learning_rate": update.learning_rate,
            "memory/peak_bytes": float(peak_memory_bytes(self.accelerator.device)),
        }

    def _samples(self, rollout: Rollout, update: Update) -> list[Sample]:
        batch, logging = update.batch, self.config.logging
        kl = sequence_sums(batch.kl, batch.mask).tolist() if batch.ref_logprobs is not None else None
        samples = samples_of(rollout, kl, logging.samples_per_step)
        if not logging.token_values:
            return samples
        values = [token_values(i, batch, update.targets, self.models.tokenizer) for i in range(len(samples))]
        return [sample.model_copy(update={"token_values": v}) for sample, v in zip(samples, values, strict=True)]


def advantages(batch: RolloutBatch, config: PPOConfig) -> Advantages:
    """Advantages and returns of a rollout batch.

    Raises:
        NonFinite: a reward or value was not finite.
    """
    rewards = whiten(batch.rewards, batch.mask, shift_mean=False) if config.whiten_rewards else batch.rewards
    found, returns = gae(rewards, batch.old_values, batch.mask, gamma=config.gamma, lam=config.gae_lambda)
    if config.whiten_advantages:
        found = whiten(found, batch.mask)
    if not bool(torch.isfinite(found).all()):
        raise NonFinite("an advantage is not finite: a score, a logprob or a value was not")
    return Advantages(advantages=found, returns=returns)


def update_rules(config: TrainConfig) -> UpdateRules:
    """The part of the spec that the optimiser reads."""
    ppo = config.ppo
    return UpdateRules(
        ppo_epochs=ppo.ppo_epochs,
        minibatch_size=config.minibatch_size,
        microbatch_size=config.microbatch_size,
        gradient_accumulation_steps=ppo.gradient_accumulation_steps,
        clip_range=ppo.clip_range,
        value_clip_range=ppo.value_clip_range,
        vf_coef=ppo.vf_coef,
        entropy_coef=ppo.entropy_coef,
        ratio_threshold=ppo.ratio_threshold,
        target_kl=ppo.target_kl,
    )
