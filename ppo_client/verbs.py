"""What the client may ask of a job that exists, and how the job has been going."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from jobs.views import AttemptView, HealthView, JobView
from ppo_client.pages import pages
from ppo_client.transport import Transport


class JobVerbs:
    """A part of PPOClient. Every verb may be repeated: what is so already stays so."""

    _http: Transport

    def cancel(self, job_id: str) -> JobView:
        """Ask for the end of a job. A running one ends after its step."""
        return self._verb(job_id, "cancel")

    def pause(self, job_id: str) -> JobView:
        """Hold a job: a queued one at once, a running one after its step, with a checkpoint."""
        return self._verb(job_id, "pause")

    def resume(self, job_id: str) -> JobView:
        """Put a paused job back into the queue, to go on from its last checkpoint; or take back a wish to pause it."""
        return self._verb(job_id, "resume")

    def stop(self, job_id: str) -> JobView:
        """End a running job well after its step, with a checkpoint: `succeeded`, `stop_reason` `user_stop`."""
        return self._verb(job_id, "stop")

    def retry(self, job_id: str, *, idempotency_key: str | None = None) -> JobView:
        """Submit the spec of a job that failed or was cancelled again; without a key there is one retry of a job."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
        return JobView.model_validate(self._http.json("POST", job_path(job_id, "retry"), headers=headers))

    def fork(
        self,
        job_id: str,
        *,
        from_step: int | str = "last",
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Submit a job that goes on from a checkpoint of this one: its step, `best` or `last`.

        `overrides` is a JSON merge patch of the spec. The new job's `parent.carried` says what it took over.
        """
        body: dict[str, Any] = {"from_step": from_step, "overrides": dict(overrides or {})}
        if name is not None:
            body["name"] = name
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return JobView.model_validate(self._http.json("POST", job_path(job_id, "fork"), body=body, headers=headers))

    def update(
        self,
        job_id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        etag: str | None = None,
    ) -> JobView:
        """Change a job's name, and its labels one by one: None takes one away.

        With `etag` only if the job is still as it was seen; else raises PreconditionFailed.
        """
        given = {"name": name, "labels": None if labels is None else dict(labels)}
        body = {field: value for field, value in given.items() if value is not None}
        headers = {"Content-Type": "application/merge-patch+json", **({"If-Match": f'"{etag}"'} if etag else {})}
        return JobView.model_validate(self._http.json("PATCH", job_path(job_id), body=body, headers=headers))

    def attempts(self, job_id: str, *, page_size: int = 50) -> Iterator[AttemptView]:
        """Who held the job and why each attempt ended, newest first; pages are fetched as they are needed."""
        return pages(self._http, job_path(job_id, "attempts"), AttemptView, {"page_size": page_size})

    def health(self, job_id: str) -> HealthView:
        """What the service finds in the run's newest numbers, with advice."""
        return HealthView.model_validate(self._http.json("GET", job_path(job_id, "health")))

    def _verb(self, job_id: str, verb: str) -> JobView:
        return JobView.model_validate(self._http.json("POST", job_path(job_id, verb)))


def job_path(job_id: str, *parts: str) -> str:
    """Path of a job, or of a part of it."""
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *parts])
