"""Asking for answers of a job's policy: before training, and as its checkpoints have it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.errands import ask
from jobs.errors import JobNotFound, Problem
from jobs.history import owned
from jobs.previews import invalid_request
from jobs.problems import check
from jobs.spec import JobSpec
from jobs.tables import Job, JobCheckpoint
from ppo_engine.config import CrossCheck
from ppo_engine.errands import (
    BASE,
    BEST,
    LAST,
    MAX_TEXTS,
    MAX_TOKENS,
    ErrandKind,
    GenerationRequest,
    GenerationWork,
    Weights,
)


def ask_generation(db: Database, principal: Principal, job_id: str, document: Any) -> str:
    """Have prompts answered; returns the errand's id.

    Raises:
        JobNotFound: no such job, or it keeps no such checkpoint.
        InvalidRequest: with every problem found.
        NoWorker, QuotaExceeded: see `jobs.errands.ask`.
    """
    kept = sa.select(JobCheckpoint.step, JobCheckpoint.path).where(JobCheckpoint.job_id == job_id)
    with db.read() as session:
        job = owned(session, principal, job_id)
        folders = {row.step: row.path for row in session.execute(kept)}
    spec = JobSpec.model_validate(job.spec)
    request, problems = check(GenerationRequest, document, lambda request: _rules(request, spec))
    if request is None or problems:
        raise invalid_request(problems)
    work = GenerationWork(
        job_id=job.id,
        request=request,
        weights=[_weights(name, job, folders) for name in request.steps],
        model=spec.model,
        generation=spec.generation,
        chat=spec.prompts.chat,
        rewards=spec.rewards,
        resources=spec.train_config().resources,
    )
    body = work.model_dump(mode="json", exclude_none=True)
    queue = spec.resources.queue
    return ask(db, principal, kind=ErrandKind.GENERATE, request=body, queue=queue, job_id=job.id)


def _weights(name: str, job: Job, folders: dict[int, str]) -> Weights:
    if name == BASE:
        return Weights(name=name)
    named = {BEST: job.best_checkpoint_step, LAST: job.last_checkpoint_step}
    step = named[name] if name in named else int(name)
    if step is None or step not in folders:
        have = ", ".join(map(str, sorted(folders))) or "none yet"
        raise JobNotFound(f"the job keeps no checkpoint `{name}`; steps that have one: {have}; `base` is always there")
    return Weights(name=name, step=step, folder=folders[step])


def _rules(request: GenerationRequest, spec: JobSpec) -> list[Problem | CrossCheck]:
    found: list[Problem | CrossCheck] = []
    for index, name in enumerate(request.compare_to):
        if name in (request.step, *request.compare_to[:index]):
            loc = ("compare_to", index)
            found.append(CrossCheck(loc=loc, code="duplicate_name", detail=f"`{name}` answers already"))
    if request.records and len(request.records) != len(request.prompts):
        detail = f"must be as many as the prompts ({len(request.prompts)}), or none"
        found.append(CrossCheck(loc=("records",), code="wrong_count", detail=detail))
    responses = len(request.prompts) * request.samples_per_prompt
    if responses > MAX_TEXTS:
        detail = f"makes {responses} responses with {len(request.prompts)} prompts; at most {MAX_TEXTS} are possible"
        found.append(CrossCheck(loc=("samples_per_prompt",), code="too_many_responses", detail=detail))
    longest = request.max_new_tokens or spec.generation.max_new_tokens
    tokens = responses * len(request.steps) * longest
    if tokens > MAX_TOKENS:
        detail = f"may make {tokens} tokens in all; at most {MAX_TOKENS} are possible"
        found.append(CrossCheck(loc=("max_new_tokens",), code="too_many_tokens", detail=detail))
    return found
