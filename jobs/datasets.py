"""Datasets: uploaded prompts and texts, checked row by row, kept as JSON Lines, named in specs by their id.

A dataset never changes. Its file is on disk before its row is in the database, and gone after the row is: a crash
between leaves a file that nobody names, never a row without its file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.dataset_rows import DatasetFormat, convert
from jobs.db import Database
from jobs.errors import (
    DatasetInUse,
    DatasetNotFound,
    DatasetQuotaExceeded,
    DatasetTooLarge,
    InvalidArgument,
    Unavailable,
)
from jobs.ids import sortable_id
from jobs.paging import id_before, token_behind
from jobs.plain import storable
from jobs.quotas import NO_LIMITS, Limits, check_datasets, check_upload
from jobs.spec import dataset_file
from jobs.states import TERMINAL
from jobs.tables import Dataset, Job, JobDataset
from jobs.views import ColumnView, DatasetView, Page
from ppo_engine.config.data import DATASET_ID

MAX_PAGE_SIZE = 200
_PREVIEW_ROWS = 5
_PREVIEW_CHARACTERS = 500
_PARTIAL = ".partial-"
_PARTIAL_SECONDS = 24 * 3600
_ID = re.compile(DATASET_ID)
_SHOWN_JOBS = 5


class Upload:
    """A file as it arrives, under a temporary name in `folder`; leaving the block removes what was not kept.

    Raises:
        Unavailable: nothing can be written there.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.size, self._digest = 0, hashlib.sha256()
        self.path = folder / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            self._file = self.path.open("xb")
        except OSError as error:
            raise _no_room(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append; raises DatasetTooLarge or Unavailable."""
        self.size += len(data)
        if self.size > self.max_bytes:
            raise DatasetTooLarge(f"a dataset may have {self.max_bytes} bytes")
        self._digest.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise _no_room(error) from error

    def finish(self) -> str:
        """End the file; returns its SHA-256."""
        try:
            self._file.close()
        except OSError as error:
            raise _no_room(error) from error
        return self._digest.hexdigest()


def _no_room(error: OSError) -> Unavailable:
    return Unavailable(f"the dataset cannot be stored now: {error.strerror or type(error).__name__}")


def _sweep(folder: Path) -> None:
    """Remove what uploads left that a crash ended."""
    for left in folder.glob(f"{_PARTIAL}*"):
        try:
            if time.time() - left.stat().st_mtime > _PARTIAL_SECONDS:
                left.unlink()
        except FileNotFoundError:
            continue


# --- add ----------------------------------------------------------------------------------------------------------


def add(
    db: Database, principal: Principal, upload: Upload, *, name: str, kind: DatasetFormat, limits: Limits = NO_LIMITS
) -> tuple[DatasetView, bool]:
    """Keep an uploaded file as a dataset; the flag says whether it is new. The same bytes make one dataset per owner.

    Raises:
        InvalidDataset: its rows cannot be used; `problems` says which and why.
        InvalidArgument: an unusable name.
        DatasetQuotaExceeded: the owner keeps as much as `limits` allow.
    """
    if not 1 <= len(name) <= 128 or not name.isprintable() or storable(name) != name:
        raise InvalidArgument("a dataset's name is 1 to 128 printable characters")
    same = principal.owner_id, upload.finish(), kind
    earlier = _same(db, *same)
    if earlier is not None:
        return earlier, False
    check_upload(db, principal.owner_id, limits, upload.size)
    row = Dataset(id=sortable_id("ds"), owner_id=principal.owner_id, name=name, format=kind, sha256=same[1])
    row.size_bytes = upload.size
    final = upload.folder / dataset_file(row.id)
    row.rows, columns = _store(upload, kind, final)
    row.stored_bytes = final.stat().st_size
    row.columns = [column.model_dump() for column in columns]
    try:
        with db.transaction() as session:
            session.add(row)
            session.flush()
            audit.record(session, principal, "dataset.create", row.id, sha256=row.sha256, rows=row.rows)
            check_datasets(session, principal.owner_id, limits)
            return _view(row), True
    except DatasetQuotaExceeded:
        final.unlink()
        raise
    except IntegrityError:
        final.unlink()
        earlier = _same(db, *same)  # a twin of this upload was faster
        if earlier is None:
            raise
        return earlier, False


def _same(db: Database, owner_id: str, sha256: str, kind: DatasetFormat) -> DatasetView | None:
    this = Dataset.owner_id == owner_id, Dataset.sha256 == sha256, Dataset.format == kind
    with db.read() as session:
        row = session.scalar(sa.select(Dataset).where(*this))
        return None if row is None else _view(row)


def _store(upload: Upload, kind: DatasetFormat, final: Path) -> tuple[int, list[ColumnView]]:
    """Write the rows under their final name, durably; nothing is left where that fails."""
    partial = upload.path.with_name(f"{upload.path.name}.jsonl")
    try:
        with partial.open("xb") as file:
            found = convert(upload.path, kind, file, upload.max_bytes)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(final)
        _fsync_folder(final.parent)
    except OSError as error:
        raise _no_room(error) from error
    finally:
        partial.unlink(missing_ok=True)
    return found


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- read and delete ----------------------------------------------------------------------------------------------


def get(db: Database, principal: Principal, dataset_id: str, folder: Path) -> DatasetView:
    """One dataset with its first rows; raises DatasetNotFound."""
    with db.read() as session:
        view = _view(_owned(session, principal, dataset_id))
    return view.model_copy(update={"preview": list(_preview(folder / dataset_file(view.id)))})


def list_datasets(
    db: Database, principal: Principal, *, page_size: int = 50, page_token: str | None = None
) -> Page[DatasetView]:
    """A page of the principal's datasets, newest first, without their rows."""
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    query = sa.select(Dataset).where(Dataset.owner_id == principal.owner_id)
    if page_token is not None:
        query = query.where(Dataset.id < id_before(page_token, _ID))
    with db.read() as session:
        rows = list(session.scalars(query.order_by(Dataset.id.desc()).limit(size + 1)))
        token = token_behind(rows[size - 1].id) if len(rows) > size else None
        return Page[DatasetView](items=[_view(row) for row in rows[:size]], next_page_token=token)


def delete(db: Database, principal: Principal, dataset_id: str, folder: Path) -> None:
    """Forget a dataset and its rows.

    Raises:
        DatasetNotFound: there is none, or it is another owner's.
        DatasetInUse: a job that has not ended needs it.
    """
    with db.transaction() as session:
        row = _owned(session, principal, dataset_id, lock=True)
        needing = sa.select(Job.id).join(JobDataset, JobDataset.job_id == Job.id)
        needing = needing.where(JobDataset.dataset_id == row.id, Job.state.not_in(TERMINAL))
        jobs = session.scalars(needing.limit(_SHOWN_JOBS + 1)).all()
        if jobs:
            more = " and more" if len(jobs) > _SHOWN_JOBS else ""
            raise DatasetInUse(f"jobs that have not ended need it: {', '.join(jobs[:_SHOWN_JOBS])}{more}")
        session.delete(row)
        audit.record(session, principal, "dataset.delete", row.id)
    (folder / dataset_file(dataset_id)).unlink(missing_ok=True)


def _owned(session: Session, principal: Principal, dataset_id: str, *, lock: bool = False) -> Dataset:
    query = sa.select(Dataset).where(Dataset.id == dataset_id, Dataset.owner_id == principal.owner_id)
    row = session.scalar(query.with_for_update() if lock else query) if _ID.fullmatch(dataset_id) else None
    if row is None:
        raise DatasetNotFound("there is no such dataset")
    return row


def _view(row: Dataset) -> DatasetView:
    return DatasetView(
        id=row.id,
        name=row.name,
        format=row.format,
        rows=row.rows,
        columns=[ColumnView.model_validate(column) for column in row.columns],
        size_bytes=row.size_bytes,
        stored_bytes=row.stored_bytes,
        sha256=row.sha256,
        create_time=row.create_time,
        links={"self": f"/v1/datasets/{row.id}"},
    )


def _preview(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for line, _ in zip(lines, range(_PREVIEW_ROWS), strict=False):
                yield {name: _cut(value) for name, value in json.loads(line).items()}
    except FileNotFoundError:
        return  # deleted a moment ago


def _cut(value: Any) -> Any:
    """A value as a preview shows it: long texts cut, long lists and objects as the beginning of their JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"
