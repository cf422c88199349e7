"""What is worth a thought about a spec that can be run. Each rule says what it saw and what would do."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.errors import Problem
from jobs.plan_views import Eta, Work
from jobs.spec import JobSpec
from ppo_engine.plans import PromptFacts

_KL_PER_TOKEN = 0.005, 0.5
"""Nats per token that an adaptive target may ask for: runs that learn and stay readable lie between."""
_RATES = {"all weights": (1e-7, 1e-4), "adapters": (1e-6, 3e-3)}
"""Learning rates that runs which learned have used, by what is trained."""
_SMALL_MODEL = 20_000_000
"""Below so many parameters learning rates ten times as large are usual."""
_SHARE = 0.2
"""Of a prompt set: what is more than this is worth a thought."""


def advise(spec: JobSpec, work: Work, eta: Eta, prompts: PromptFacts | None, parameters: int | None) -> list[Problem]:
    """Warnings about a sound spec.

    Args:
        prompts: the training set, if it was read.
        parameters: of the policy, if they are known.
    """
    parts = (_kl(spec), _rate(spec, parameters), _sizes(spec), _run(spec, work, eta), _set(work, prompts))
    return [warning for part in parts for warning in part]


def _warning(where: str, code: str, detail: str, suggestion: str) -> Problem:
    return Problem(pointer="/" + where.replace(".", "/"), code=code, detail=detail, suggestion=suggestion)


def _kl(spec: JobSpec) -> Iterator[Problem]:
    kl, tokens = spec.kl, spec.generation.max_new_tokens
    if kl.fixed is not None or kl.init_kl_coef == 0:
        return
    target, horizon = kl.controller.target, kl.controller.horizon  # type: ignore[union-attr]
    per_token = target / tokens
    if not _KL_PER_TOKEN[0] <= per_token <= _KL_PER_TOKEN[1]:
        size = "little" if per_token < _KL_PER_TOKEN[0] else "much"
        detail = f"a KL target of {target:g} nats over {tokens} tokens is {per_token:.2g} nats a token, which is {size}"
        advice = f"Between {_KL_PER_TOKEN[0] * tokens:.4g} and {_KL_PER_TOKEN[1] * tokens:.4g} suits this length."
        yield _warning("kl.adaptive.target", "kl_target_for_length", detail, advice)
    samples = spec.ppo.steps * spec.ppo.batch_size
    if samples < horizon / 20:
        detail = f"the KL coefficient adapts over {horizon:g} samples, and the whole run has {samples}: it hardly moves"
        yield _warning("kl.adaptive.horizon", "kl_horizon_for_run", detail, f"A horizon near {samples} lets it follow.")


def _rate(spec: JobSpec, parameters: int | None) -> Iterator[Problem]:
    what = "adapters" if spec.model.lora else "all weights"
    low, high = _RATES[what]
    if parameters is not None and parameters < _SMALL_MODEL:
        high *= 10
    rate = spec.optimizer.learning_rate
    if not low <= rate <= high:
        detail = f"{rate:g} is far from what training {what} usually takes, {low:g} to {high:g}"
        yield _warning("optimizer.learning_rate", "learning_rate_far_out", detail, f"Try {(low * high) ** 0.5:.1g}.")


def _sizes(spec: JobSpec) -> Iterator[Problem]:
    batch, minibatch = spec.ppo.batch_size, spec.minibatch_size
    if batch % minibatch:
        detail = f"{minibatch} does not divide the batch of {batch}: the last minibatch has {batch % minibatch}"
        yield _warning("ppo.minibatch_size", "uneven_minibatches", detail, "Sequences in a small minibatch weigh more.")
    if spec.ppo.whiten_advantages and batch < 8:
        detail = f"advantages are whitened over a batch of {batch}: their spread is mostly chance"
        yield _warning("ppo.batch_size", "small_batch", detail, "Take at least 8, better 32 or more.")


def _run(spec: JobSpec, work: Work, eta: Eta) -> Iterator[Problem]:
    limit = spec.resources.max_runtime_seconds
    if eta.low_seconds is not None and eta.low_seconds > limit:
        detail = f"earlier runs say at least {eta.low_seconds:.0f} s, and the job may run {limit} s"
        yield _warning("resources.max_runtime_seconds", "runtime_too_short", detail, "Raise it, or take fewer steps.")
    if work.checkpoints == 1 and spec.ppo.steps >= 20:
        detail = f"there is one checkpoint, at the end of {spec.ppo.steps} steps: a lost worker loses all of them"
        advice = f"Try {max(1, spec.ppo.steps // 10)}."
        yield _warning("checkpoint.every_steps", "no_checkpoint_on_the_way", detail, advice)


def _set(work: Work, prompts: PromptFacts | None) -> Iterator[Problem]:
    if prompts is None:
        return
    passes = work.passes_over_prompts
    if passes is not None and passes < 1:
        detail = f"the run draws {passes:.0%} of the usable prompts: the others are never seen"
        yield _warning("ppo.steps", "prompts_not_covered", detail, "More steps, a larger batch, or a smaller set.")
    dropped = prompts.too_long + prompts.empty
    if dropped > _SHARE * prompts.tokenised:
        detail = f"{dropped} of {prompts.tokenised} prompts are left out ({prompts.too_long} too long)"
        yield _warning("prompts.max_tokens", "prompts_left_out", detail, "Raise prompts.max_tokens or cut the prompts.")
    if prompts.duplicates > _SHARE * prompts.count:
        detail = f"{prompts.duplicates} of {prompts.count} prompts are there more than once"
        yield _warning("prompts", "duplicate_prompts", detail, "Use ppo.samples_per_prompt for several answers to one.")
