"""What reports of a worker have in common: facts that a database takes, said once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.orm import Session

from jobs.lease import Lease, fence
from jobs.plain import storable
from jobs.tables import JobEvent
from jobs.transition import Happening, note

CANCEL_REQUESTED, STOP_REQUESTED, PAUSE_REQUESTED = "cancel_requested", "stop_requested", "pause_requested"
PAUSE_WITHDRAWN = "pause_withdrawn"
_WISHES = (CANCEL_REQUESTED, STOP_REQUESTED, PAUSE_REQUESTED, PAUSE_WITHDRAWN)
"""The events that another hand than the worker's may write into a running attempt."""


def facts(event: BaseModel) -> dict[str, Any]:
    """An engine's event as the data of a job's event."""
    return {name: _storable(value) for name, value in event.model_dump(mode="json", exclude={"event"}).items()}


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note_once(session: Session, lease: Lease, kind: str, what: Happening) -> bool:
    """Record an event, unless it is what this attempt said last: a report may come twice. Whether it was new."""
    mine = JobEvent.job_id == lease.job_id, JobEvent.type.not_in(_WISHES)
    last = session.scalar(sa.select(JobEvent).where(*mine).order_by(JobEvent.seq.desc()).limit(1))
    if last is not None and (last.type, last.attempt, last.data) == (kind, lease.attempt, what.data):
        return False
    note(session, kind, fence(lease), what)
    return True


def evaluated(scalars: Mapping[str, float]) -> dict[str, float]:
    """The numbers that come from evaluations."""
    return {key: value for key, value in scalars.items() if key.startswith("eval/")}
