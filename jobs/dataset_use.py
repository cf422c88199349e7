"""Datasets that specs name: whether they fit, and that they stay while a job needs them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import Problem
from jobs.plain import pointer
from jobs.problems import nearest, shown
from jobs.spec import JobSpec, invalid_spec
from jobs.tables import Dataset, JobDataset
from jobs.views import ColumnView
from ppo_engine.config import PromptsConfig
from ppo_engine.config.data import MAX_PROMPT_CHARACTERS


def dataset_problems(db: Database, principal: Principal, spec: JobSpec) -> list[Problem]:
    """What is wrong with the datasets that a spec names: not there, not the principal's, no such column, not texts."""
    wanted = _named(spec)
    if not wanted:
        return []  # most specs: no statement
    query = sa.select(Dataset.id, Dataset.columns)
    mine = query.where(Dataset.owner_id == principal.owner_id, Dataset.id.in_(wanted))
    with db.read() as session:
        found = {row.id: [ColumnView.model_validate(column) for column in row.columns] for row in session.execute(mine)}
    problems: list[Problem] = []
    for loc, prompts in spec.prompt_sets():
        if prompts.dataset is None:
            continue
        place = pointer((*loc, "dataset"))
        if prompts.dataset.id not in found:
            detail = "there is no such dataset; `GET /v1/datasets` lists yours"
            given = prompts.dataset.id
            problems.append(Problem(pointer=f"{place}/id", code="dataset_not_found", detail=detail, given=given))
        else:
            problems += _field_problem(prompts, found[prompts.dataset.id], f"{place}/field")
    return problems


def hold_datasets(session: Session, principal: Principal, job_id: str, spec: JobSpec) -> None:
    """Note which datasets a new job needs: they cannot be deleted until it has ended.

    Raises:
        InvalidSpec: one was deleted a moment ago.
    """
    wanted = _named(spec)
    if not wanted:
        return
    query = sa.select(Dataset.id).where(Dataset.owner_id == principal.owner_id, Dataset.id.in_(wanted))
    # The lock lets other jobs in and a delete wait, which then sees this job.
    held = set(session.scalars(query.with_for_update(read=True, key_share=True)))
    if held != wanted:
        detail = "the dataset was deleted a moment ago"
        gone = sorted(wanted - held)
        raise invalid_spec([Problem(pointer="/prompts", code="dataset_not_found", detail=detail, given=gone[0])])
    session.add_all(JobDataset(job_id=job_id, dataset_id=dataset_id) for dataset_id in sorted(wanted))


def _named(spec: JobSpec) -> set[str]:
    return {prompts.dataset.id for _, prompts in spec.prompt_sets() if prompts.dataset is not None}


def _field_problem(prompts: PromptsConfig, columns: list[ColumnView], place: str) -> list[Problem]:
    field = prompts.dataset.field if prompts.dataset else ""
    names = [column.name for column in columns]
    column = next((column for column in columns if column.name == field), None)
    if column is None:
        detail, near = "the dataset has no such column", nearest(field, names)
        problem = Problem(pointer=place, code="unknown_column", detail=detail, given=shown(field), allowed=names[:50])
        return [problem.model_copy(update={"suggestion": near})]
    chat = prompts.chat is not None
    unfit = column.first_row_not_chat if chat else column.first_row_not_text
    if unfit is not None:
        kind = "neither a text nor a list of messages" if chat else "no text"
        detail = f"row {unfit} of the dataset has {kind} in this column"
        return [Problem(pointer=place, code="column_unfit", detail=detail, given=shown(field))]
    if column.longest_characters > MAX_PROMPT_CHARACTERS:
        detail = f"has a text of {column.longest_characters} characters; {MAX_PROMPT_CHARACTERS} are the most"
        return [Problem(pointer=place, code="too_long", detail=detail, given=shown(field))]
    return []
