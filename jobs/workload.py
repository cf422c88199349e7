"""How much a run does, and how long that took before."""

from __future__ import annotations

from math import ceil
from statistics import median
from typing import Any

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.plan_views import Eta, Work
from jobs.spec import JobSpec
from jobs.states import JobState
from jobs.tables import Job
from ppo_engine.plans import PromptFacts

_LOOKED_AT = 100
"""Newest ended jobs of the owner that may be comparable."""
_FASTER, _SLOWER = 0.8, 1.25
"""The same run again took between these shares of its time."""
_PASSES_BEFORE_UPDATE = 3
"""A step's cost is counted in passes over its tokens: sampling, and the scoring by policy and reference; then in every
epoch a forward and a backward pass, which counts twice."""
_PASSES_PER_EPOCH = 3


def work_of(spec: JobSpec, prompts: PromptFacts | None, evaluation: PromptFacts | None) -> Work:
    """What the run does; with the facts of its prompts, if they are known."""
    ppo, tokens = spec.ppo, spec.generation.max_new_tokens
    samples = ppo.steps * ppo.batch_size
    minibatches = ceil(ppo.batch_size / spec.minibatch_size)
    every = spec.evaluation.every_steps if spec.evaluation else None
    evaluations = 0 if every is None else 1 + ceil(ppo.steps / every)
    drawn, usable = samples / ppo.samples_per_prompt, _usable(prompts)
    answered = _usable(evaluation)
    return Work(
        steps=ppo.steps,
        samples=samples,
        minibatches=ppo.steps * ppo.ppo_epochs * minibatches,
        optimizer_steps=ppo.steps * ppo.ppo_epochs * ceil(minibatches / ppo.gradient_accumulation_steps),
        response_tokens_max=samples * tokens,
        trained_tokens_max=samples * tokens * ppo.ppo_epochs,
        prompt_tokens=round(samples * prompts.tokens.mean) if prompts and prompts.tokens else None,
        passes_over_prompts=round(drawn / usable, 3) if usable else None,
        evaluations=evaluations,
        evaluation_responses=None if answered is None else evaluations * answered,
        checkpoints=ceil(ppo.steps / spec.checkpoint.every_steps),
    )


def _usable(prompts: PromptFacts | None) -> int | None:
    """Usable prompts of the whole set, by the share of those that were tokenised."""
    if prompts is None or not prompts.usable:
        return None
    return max(1, round(prompts.count * prompts.usable / prompts.tokenised))


def eta_of(db: Database, principal: Principal, spec: JobSpec) -> Eta:
    """The time of the run, from the principal's own earlier runs of this model in this queue."""
    mine = sa.select(Job.spec, Job.queue, Job.seconds_per_step, Job.step, Job.attempt, Job.start_time, Job.end_time)
    mine = mine.where(Job.owner_id == principal.owner_id, Job.state == JobState.SUCCEEDED)
    with db.read() as session:
        rows = session.execute(mine.order_by(Job.id.desc()).limit(_LOOKED_AT)).all()
    wanted, cost = _kind(spec.document()), _cost(spec.document())
    alike = [
        row
        for row in rows
        if row.seconds_per_step is not None and row.queue == spec.resources.queue and _kind(row.spec) == wanted
    ]
    if not alike:
        basis = f"unknown: no run of this model has ended in the queue `{spec.resources.queue}` yet"
        return Eta(known=False, jobs=0, basis=basis)
    seconds = [row.seconds_per_step * cost / _cost(row.spec) for row in alike]
    aside = [_aside(row) for row in alike]
    return Eta(
        known=True,
        low_seconds=round(_FASTER * (min(seconds) * spec.ppo.steps + min(aside)), 1),
        high_seconds=round(_SLOWER * (max(seconds) * spec.ppo.steps + max(aside)), 1),
        seconds_per_step=round(median(seconds), 3),
        jobs=len(alike),
        basis=f"earlier runs of this model in the queue `{spec.resources.queue}`, scaled by response tokens and epochs",
    )


def _aside(row: Any) -> float:
    """Seconds of a run beside its steps: loading, and what the average of the last steps does not show.

    Only of runs of one attempt: others also waited.
    """
    if row.attempt != 1 or row.start_time is None or row.end_time is None:
        return 0.0
    aside: float = (row.end_time - row.start_time).total_seconds() - row.step * row.seconds_per_step
    return max(0.0, aside)


def _kind(document: dict[str, Any]) -> tuple[Any, ...]:
    """What must be equal for two runs to take comparable time per token."""
    model, resources = document["model"], document.get("resources", {})
    trained = model.get("trainable_layers"), "lora" in model, "separate" in model.get("value", {})
    how = [resources.get(name) for name in ("device", "precision", "threads", "processes")]
    return (model["policy"], *trained, *how)


def _cost(document: dict[str, Any]) -> float:
    """Passes over response tokens in one step."""
    ppo = document["ppo"]
    passes = _PASSES_BEFORE_UPDATE + _PASSES_PER_EPOCH * ppo["ppo_epochs"]
    return float(ppo["batch_size"] * document["generation"]["max_new_tokens"] * passes)
