"""Plan before spending: all that a submit checks and what can be known of the run besides. Nothing is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.advice import advise
from jobs.auth import Principal
from jobs.dataset_use import dataset_problems
from jobs.db import Database
from jobs.errands import ask
from jobs.errors import InvalidSpec, Problem, QuotaExceeded
from jobs.fleet import workers
from jobs.plain import plain
from jobs.plan_views import PlanView
from jobs.quotas import Limits, quota
from jobs.reach import Reach, host_problems
from jobs.repair import repaired
from jobs.sources import check_sources
from jobs.spec import JobSpec, parse_spec
from jobs.webhooks import notify_problems
from jobs.workload import eta_of, work_of
from ppo_engine.config import TrainConfig, expand_preset
from ppo_engine.errands import ErrandKind
from ppo_engine.plans import Probe, ProbeRequest, Remark

SPEC_FIRST = "the spec has errors: correct those, then a worker can look at models, prompts and rewards"


@dataclass(frozen=True, slots=True)
class Draft:
    """A spec as far as the front door can judge it: None where it is not one, and what a submit would refuse."""

    spec: JobSpec | None
    problems: list[Problem]

    @property
    def may_be_looked_at(self) -> bool:
        """Whether a worker may open what it names: all of it was found to be there, and to be the caller's to use."""
        return self.spec is not None and not self.problems


def draft(
    db: Database, principal: Principal, document: Any, roots: Sequence[Path], reach: Reach | None = None
) -> Draft:
    """Every problem that a submit would report, those of files and datasets too although fields are wrong."""
    try:
        spec = parse_spec(document)
    except InvalidSpec as error:
        named = _named_by_broken(db, principal, document, roots, reach)
        return Draft(None, [*error.problems, *(problem for problem in named if _is_new(problem, error.problems))])
    return Draft(spec, _named(db, principal, spec, roots, reach))


def _named(
    db: Database, principal: Principal, spec: JobSpec, roots: Sequence[Path], reach: Reach | None
) -> list[Problem]:
    """Files, datasets, hosts and webhooks that cannot be used."""
    hosts = [] if reach is None else host_problems(spec, reach)
    problems = [*notify_problems(db, principal, spec), *hosts]
    try:
        check_sources(spec, roots, dataset_problems(db, principal, spec))
    except InvalidSpec as error:
        problems = [*error.problems, *problems]
    return problems


def _named_by_broken(
    db: Database, principal: Principal, document: Any, roots: Sequence[Path], reach: Reach | None
) -> list[Problem]:
    """The same for a spec with broken fields, which are given stand-ins."""
    whole, _ = plain(expand_preset(document))
    spec = None if whole is None else repaired(JobSpec, whole, high=False)
    return [] if spec is None else _named(db, principal, spec, roots, reach)


def _is_new(problem: Problem, known: Sequence[Problem]) -> bool:
    """Whether it is about another part of the spec than what is known: not about a stand-in."""
    return not any(f"{problem.pointer}/".startswith(f"{other.pointer}/") for other in known)


def ask_probe(db: Database, principal: Principal, config: TrainConfig, queue: str) -> str:
    """Have a worker of `queue` look at a run; returns the errand's id.

    Raises:
        NoWorker, QuotaExceeded: see `jobs.errands.ask`.
    """
    request = ProbeRequest(config=config).model_dump(mode="json")
    return ask(db, principal, kind=ErrandKind.PROBE, request=request, queue=queue)


def complete(
    db: Database, principal: Principal, drafted: Draft, found: Probe | None, not_probed: str | None, limits: Limits
) -> PlanView:
    """The whole answer.

    Args:
        found: what a worker saw of the run; None with the reason in `not_probed`.
    """
    spec, errors = drafted.spec, list(drafted.problems)
    if spec is None:
        return PlanView(ok=False, probed=False, not_probed=not_probed, errors=errors, warnings=[])
    facts = found or Probe()
    errors += [*map(_problem, facts.errors), *_quota(db, principal, limits)]
    work = work_of(spec, facts.prompts, facts.evaluation_prompts)
    eta = eta_of(db, principal, spec)
    parameters = None if facts.model is None else facts.model.parameters
    warnings = [*map(_problem, facts.warnings), *_queue(db, spec)]
    return PlanView(
        ok=not errors,
        probed=found is not None,
        not_probed=not_probed,
        errors=errors,
        warnings=warnings + advise(spec, work, eta, facts.prompts, parameters),
        model=facts.model,
        prompts=facts.prompts,
        evaluation_prompts=facts.evaluation_prompts,
        rewards=facts.rewards,
        memory=facts.memory,
        disk=facts.disk,
        work=work,
        eta=eta,
    )


def _problem(finding: Remark) -> Problem:
    suggestion = finding.suggestion or None
    return Problem(pointer=finding.pointer, code=finding.code, detail=finding.detail, suggestion=suggestion)


def _quota(db: Database, principal: Principal, limits: Limits) -> list[Problem]:
    """A submit now would be refused."""
    queued = quota(db, principal.owner_id, limits).queued_jobs
    if queued.limit is None or queued.used < queued.limit:
        return []
    detail = f"{queued.used} of your jobs are queued, and your quota is {queued.limit}: a submit would be refused now"
    advice = "Wait until some have started, cancel some, or ask an administrator for more."
    return [Problem(pointer="", code=QuotaExceeded.code, detail=detail, suggestion=advice)]


def _queue(db: Database, spec: JobSpec) -> list[Problem]:
    """A job that no worker would take waits."""
    queue, served = spec.resources.queue, {name for worker in workers(db) for name in worker.queues}
    if queue in served:
        return []
    detail = f"no worker that is alive serves the queue `{queue}`: the job would wait"
    return [Problem(pointer="/resources/queue", code="no_worker", detail=detail, allowed=sorted(served) or None)]
