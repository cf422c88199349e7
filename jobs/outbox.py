"""Messages for webhooks, written in the transaction of the event that they tell: committed with it or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.ids import sortable_id
from jobs.job_view import labels
from jobs.tables import Job
from jobs.webhook_spec import EventType
from jobs.webhook_tables import Webhook, WebhookMessage

# Built once and without the ORM: every event asks, and most owners have no webhook. Those that are found are kept from
# being removed until the event is committed: a message to one that is gone would undo the event.
_W = Webhook.__table__
_HEARERS = sa.select(_W.c.id, _W.c.url, _W.c.all_jobs, _W.c.event_types).where(
    _W.c.owner_id == sa.bindparam("owner"), _W.c.enabled.is_(True)
)
_HEARERS = _HEARERS.with_for_update(read=True, key_share=True)
_MESSAGE = sa.insert(WebhookMessage.__table__)  # type: ignore[arg-type]


def announce(session: Session, job: Job, event: Mapping[str, Any]) -> None:
    """Write the messages that one event of a job is worth; the job's row is locked by the caller."""
    kind = f"job.{event['type']}"
    hearers = [
        row.id
        for row in session.execute(_HEARERS, {"owner": job.owner_id})
        if (kind in row.event_types or EventType.ALL in row.event_types)
        and (row.all_jobs or _names(job.spec, row.id, row.url))
    ]
    post(session, hearers, kind, _data(job, event) if hearers else {})


def post(session: Session, webhook_ids: Sequence[str], kind: str, data: Mapping[str, Any]) -> list[str]:
    """Write one message to each endpoint, due at once; returns their ids."""
    ids = [sortable_id("msg") for _ in webhook_ids]
    rows = zip(ids, webhook_ids, strict=True)
    if ids:
        session.execute(_MESSAGE, [{"id": id_, "webhook_id": to, "type": kind, "data": data} for id_, to in rows])
    return ids


def _names(spec: Mapping[str, Any], webhook_id: str, url: str) -> bool:
    wanted = spec.get("notify", ())
    return any(item.get("webhook") == webhook_id or item.get("url") == url for item in wanted)


def _data(job: Job, event: Mapping[str, Any]) -> dict[str, Any]:
    """The job in few words, as it was at the event; texts and samples stay behind the API's access rules."""
    error = {key: job.error[key] for key in ("code", "category", "message") if key in job.error} if job.error else None
    return {
        "job": {
            "id": job.id,
            "name": job.name,
            "state": job.state,
            "attempt": job.attempt,
            "step": job.step,
            "steps_total": job.steps_total,
            "labels": labels(job),
            "stop_reason": job.stop_reason,
            "error": error,
            "links": {"self": f"/v1/jobs/{job.id}"},
        },
        "event": {key: event[key] for key in ("seq", "type", "message", "data")},
    }
