"""Statements for a page of jobs: an index gives the jobs in order, and the page's end ends the reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from jobs.states import JobState
from jobs.tables import Job, JobLabel

Jobs = sa.Select[Job]


def newest_jobs(
    owner_id: str, states: Sequence[JobState], labels: Mapping[str, str], before: str | None, count: int
) -> Jobs:
    """The `count` newest jobs of an owner: in one of `states`, with all `labels`, older than the id `before`."""
    if labels:
        return _labelled(owner_id, states, labels, before).limit(count)
    if len(set(states)) > 1:
        return _of_states(owner_id, states, before, count)
    query = _older(sa.select(Job).where(Job.owner_id == owner_id), before)
    if states:
        query = query.where(Job.state == states[0])
    return query.order_by(Job.id.desc()).limit(count)


def _older(query: Jobs, before: str | None) -> Jobs:
    return query if before is None else query.where(Job.id < before)


def _labelled(owner_id: str, states: Sequence[JobState], labels: Mapping[str, str], before: str | None) -> Jobs:
    """From the index of one label, which is in the order of ids: a list of all its jobs would be made first."""
    (key, value), *further = labels.items()
    query = sa.select(Job).join(JobLabel, JobLabel.job_id == Job.id).where(Job.owner_id == owner_id)
    query = query.where(JobLabel.key == key, JobLabel.value == value)
    for other_key, other_value in further:
        other = sa.select(JobLabel.job_id).where(JobLabel.key == other_key, JobLabel.value == other_value)
        query = query.where(sa.exists(other.where(JobLabel.job_id == Job.id).correlate(Job)))
    if states:
        query = query.where(Job.state.in_(states))
    if before is not None:
        query = query.where(JobLabel.job_id < before)
    return query.order_by(JobLabel.job_id.desc())


def _of_states(owner_id: str, states: Sequence[JobState], before: str | None, count: int) -> Jobs:
    """The newest of each state, then of those: with `state IN (...)` SQLite would read all of the owner's."""
    newest = []
    for state in dict.fromkeys(states):
        query = sa.select(Job.id).where(Job.owner_id == owner_id, Job.state == state)
        query = query if before is None else query.where(Job.id < before)
        newest.append(sa.select(query.order_by(Job.id.desc()).limit(count).subquery().c.id))
    return sa.select(Job).where(Job.id.in_(sa.union_all(*newest))).order_by(Job.id.desc()).limit(count)
