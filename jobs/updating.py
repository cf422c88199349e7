"""What may change of a job that exists: its name and its labels. The spec stays as it was submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import EtagMismatch, InvalidArgument, Problem
from jobs.history import owned
from jobs.job_view import job_view, labels
from jobs.problems import check
from jobs.spec import JobName, LabelKey, LabelValue
from jobs.tables import Job, JobLabel
from jobs.transition import touch
from jobs.views import JobView
from ppo_engine.config import Config

_MAX_LABELS = 32
_LABEL = sa.insert(JobLabel.__table__)  # type: ignore[arg-type]


class JobPatch(Config):
    """A JSON merge patch (RFC 7396) of a job: what is absent stays, null takes away."""

    name: JobName | None = Field(None, description="A new name; it cannot be taken away.")
    labels: dict[LabelKey, LabelValue | None] | None = Field(
        None, max_length=2 * _MAX_LABELS, description="Labels to set, null for those to take away; null for all."
    )


def parse_patch(data: Any) -> JobPatch:
    """Read a patch from parsed JSON; raises InvalidArgument with every problem."""
    patch, problems = check(JobPatch, data)
    if patch is not None and "name" in patch.model_fields_set and patch.name is None:
        problems.append(Problem(pointer="/name", code="required", detail="a job always has a name"))
    if patch is None or problems:
        raise InvalidArgument("the job cannot be changed so", problems=problems)
    return patch


def update(
    db: Database,
    principal: Principal,
    job_id: str,
    patch: JobPatch,
    *,
    etags: frozenset[str] | None = None,
    replace_labels: bool = False,
) -> JobView:
    """Change a job's name and labels, in any state; the same patch again changes nothing.

    Args:
        etags: only if the job's present ETag is one of these.
        replace_labels: the patch's labels are all that the job keeps.

    Raises:
        EtagMismatch: it is not.
        InvalidArgument: the job would have too many labels.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        if etags is not None and job_view(session, job).etag not in etags:
            raise EtagMismatch("the job has changed since it was read: look at it again, and send its present ETag")
        changes: dict[str, Any] = {}
        if patch.name is not None and patch.name != job.name:
            changes["name"] = patch.name
        if "labels" in patch.model_fields_set:
            wanted = _merged({} if replace_labels else labels(job), patch.labels)
            if wanted != labels(job):
                changes["labels"] = wanted
                _index(session, job.id, wanted)
        if changes:
            job = touch(session, [Job.id == job.id], **changes) or job
            audit.record(session, principal, "job.update", job.id, fields=sorted(changes))
        return job_view(session, job)


def _merged(now: Mapping[str, str], patch: Mapping[str, str | None] | None) -> dict[str, str]:
    if patch is None:
        return {}
    merged = {key: value for key, value in {**now, **patch}.items() if value is not None}
    if len(merged) > _MAX_LABELS:
        problem = Problem(pointer="/labels", code="too_long", detail=f"a job has at most {_MAX_LABELS} labels")
        raise InvalidArgument(f"the job would have {len(merged)} labels", problems=[problem])
    return merged


def _index(session: Session, job_id: str, wanted: Mapping[str, str]) -> None:
    session.execute(sa.delete(JobLabel).where(JobLabel.job_id == job_id))
    if wanted:
        session.execute(_LABEL, [{"job_id": job_id, "key": key, "value": value} for key, value in wanted.items()])
