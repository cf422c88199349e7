"""What a job has left behind, a page at a time: events, samples, checkpoints. Reads only, scoped to the owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import InvalidArgument
from jobs.history import check_range, checkpoint_view, events, owned
from jobs.paging import foreign_token, number_before, token_behind_number, token_behind_values, values_before
from jobs.tables import JobCheckpoint, JobSample
from jobs.views import CheckpointView, JobEventView, Page, SampleSort, SampleView

_EVENT, _STEP = "event", "step"
_MAX_ITEMS = 1000
_MAX_CHECKPOINTS = 200


def events_page(
    db: Database, principal: Principal, job_id: str, *, after_seq: int = 0, limit: int = 1000, token: str | None = None
) -> Page[JobEventView]:
    """A page of events behind `after_seq` and the token, oldest first."""
    check_range("limit", limit, 1, _MAX_ITEMS)
    check_range("after_seq", after_seq, 0, 2**62)
    begin = after_seq if token is None else max(after_seq, number_before(token, _EVENT))
    found = events(db, principal, job_id, after_seq=begin, limit=limit + 1)
    following = token_behind_number(_EVENT, found[limit - 1].seq) if len(found) > limit else None
    return Page[JobEventView](items=found[:limit], next_page_token=following)


def checkpoints(
    db: Database, principal: Principal, job_id: str, *, page_size: int = 50, token: str | None = None
) -> Page[CheckpointView]:
    """A page of the checkpoints that are kept, oldest first."""
    check_range("page_size", page_size, 1, 2**31)
    size = min(page_size, _MAX_CHECKPOINTS)
    query = sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job_id)
    if token is not None:
        query = query.where(JobCheckpoint.step > number_before(token, _STEP))
    with db.read() as session:
        owned(session, principal, job_id)
        rows = list(session.scalars(query.order_by(JobCheckpoint.step).limit(size + 1)))
    following = token_behind_number(_STEP, rows[size - 1].step) if len(rows) > size else None
    return Page[CheckpointView](items=[checkpoint_view(row) for row in rows[:size]], next_page_token=following)


# --- samples ------------------------------------------------------------------------------------------------------


def samples(
    db: Database,
    principal: Principal,
    job_id: str,
    *,
    step: int | None = None,
    evaluation: bool | None = None,
    sort: SampleSort = SampleSort.INDEX,
    limit: int = 100,
    token: str | None = None,
) -> Page[SampleView]:
    """A page of the stored responses of a step, or of the latest step that has some.

    `evaluation`: only answers to the evaluation set, or only others. Pages behind the first stay with its step,
    whatever the job has reported since.
    """
    check_range("limit", limit, 1, _MAX_ITEMS)
    if step is not None:
        check_range("step", step, 0, 2**63 - 1)
    last = None if token is None else _Last.of(token, step, evaluation, sort)
    wanted = [JobSample.job_id == job_id]
    if evaluation is not None:
        wanted.append(JobSample.evaluation.is_(evaluation))
    latest = sa.select(sa.func.max(JobSample.step)).where(*wanted).scalar_subquery()
    chosen: Any = latest if step is None else step
    query = sa.select(JobSample).where(*wanted, JobSample.step == (chosen if last is None else last.step))
    if last is not None:
        query = query.where(_behind(sort, last))
    with db.read() as session:
        owned(session, principal, job_id)
        rows = list(session.scalars(query.order_by(*_order(sort)).limit(limit + 1)))
    following = _Last.row(rows[limit - 1], sort).token(evaluation, sort) if len(rows) > limit else None
    return Page[SampleView](items=[_sample_view(row) for row in rows[:limit]], next_page_token=following)


@dataclass(frozen=True, slots=True)
class _Last:
    """The sample that a page ended with."""

    step: int
    value: float | None
    """Of the column that sorts."""
    index: int

    @classmethod
    def row(cls, row: JobSample, sort: SampleSort) -> Self:
        return cls(row.step, getattr(row, _name(sort)), row.index)

    @classmethod
    def of(cls, token: str, step: int | None, evaluation: bool | None, sort: SampleSort) -> Self:
        """Read a token; raises InvalidArgument unless it belongs to this very list."""
        match values_before(token):
            case [int(its_step), int(index), float() | int() | None as value, its_evaluation, its_sort]:
                whole = (its_step, index) if value is None or isinstance(value, float) else (its_step, index, value)
            case _:
                raise foreign_token()
        if not all(0 <= number < 2**63 for number in whole):
            raise foreign_token()
        same = step in (None, its_step) and its_evaluation is evaluation and its_sort == sort
        if not same:
            raise InvalidArgument("page_token is of another list: repeat `step`, `evaluation` and `sort` as they were")
        return cls(its_step, value, index)

    def token(self, evaluation: bool | None, sort: SampleSort) -> str:
        return token_behind_values([self.step, self.index, self.value, evaluation, str(sort)])


def _name(sort: SampleSort) -> str:
    return sort.removeprefix("-")


def _order(sort: SampleSort) -> list[sa.ColumnElement[Any]]:
    """By a column, responses without a value last; equal ones in the order of the batch."""
    column: sa.ColumnElement[Any] = getattr(JobSample, _name(sort))
    return [(column.desc() if sort.startswith("-") else column.asc()).nulls_last(), JobSample.index.asc()]


def _behind(sort: SampleSort, last: _Last) -> sa.ColumnElement[bool]:
    """What comes after a sample in that order."""
    column: sa.ColumnElement[Any] = getattr(JobSample, _name(sort))
    later = JobSample.index > last.index
    if last.value is None:
        return column.is_(None) & later
    beyond = column < last.value if sort.startswith("-") else column > last.value
    return beyond | ((column == last.value) & later) | column.is_(None)


def _sample_view(row: JobSample) -> SampleView:
    return SampleView(
        step=row.step,
        index=row.index,
        prompt=row.prompt,
        response=row.response,
        score=row.score,
        components=row.components,
        kl=row.kl,
        response_tokens=row.response_tokens,
        finished=row.finished,
        evaluation=row.evaluation,
    )
