"""The Python client: one method per thing the service does, typed values out, typed errors raised."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from pydantic import BaseModel

from jobs.states import JobState
from jobs.views import CheckpointView, JobEventView, JobView, LogsView, MetricsView, SampleSort, SampleView
from ppo_client import settings, sse, updates
from ppo_client.access import Access, Keys
from ppo_client.datasets import Datasets
from ppo_client.downloads import Downloads
from ppo_client.errands import Errands
from ppo_client.errors import ClientError, ProtocolError, ServiceUnavailable, ServiceUnreachable
from ppo_client.pages import pages
from ppo_client.plans import Plans
from ppo_client.transport import RetryPolicy, Transport
from ppo_client.updates import End, Update
from ppo_client.verbs import JobVerbs, job_path
from ppo_client.webhooks import Webhooks

# The service sends a heartbeat every 15 s; three missed ones mean a dead connection.
_STREAM_SILENCE_SECONDS = 45.0
_LONGEST_POLL_SECONDS = 50.0


class WaitTimeout(ClientError):
    """The job did not end in time; it goes on."""


class NoCheckpoint(ClientError):
    """The job has no such checkpoint."""


class PPOClient(Errands, Plans, Access, JobVerbs, Datasets, Downloads):
    """A connection to one service. Thread-safe; close it, or use it in a `with` block.

    All methods raise `ppo_client.errors.ApiError` (a refusal, with every reason) or `ServiceUnreachable` after
    retries.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 120.0,
    ) -> None:
        """Without `url` or `key`: PPO_URL or this machine, and PPO_KEY.

        `patience_seconds` is how long `wait` and `watch` bear a service that does not answer.
        """
        given = settings.load()
        self._http = Transport(url or given.url, key or given.key, retry or RetryPolicy(), timeout_seconds)
        self._patience_seconds = patience_seconds
        self.webhooks = Webhooks(self._http)
        self.keys = Keys(self._http)
        # The answer to a long poll must come well before the connection is given up.
        self._poll_seconds = min(_LONGEST_POLL_SECONDS, timeout_seconds / 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None) -> JobView:
        """Submit a job. Every call has an idempotency key, so that its own retries cannot submit twice."""
        body = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, BaseModel) else dict(spec)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return JobView.model_validate(self._http.json("POST", "/v1/jobs", body=body, headers=headers))

    def get(self, job_id: str) -> JobView:
        """The job as it is now."""
        return JobView.model_validate(self._http.json("GET", job_path(job_id)))

    def list(
        self,
        *,
        states: Sequence[JobState | str] = (),
        labels: Mapping[str, str] | None = None,
        page_size: int = 50,
    ) -> Iterator[JobView]:
        """All jobs that match, newest first; pages are fetched as they are needed."""
        params: dict[str, Any] = {"page_size": page_size, "state": [str(state) for state in states]}
        params["label"] = [f"{name}={value}" for name, value in (labels or {}).items()]
        return pages(self._http, "/v1/jobs", JobView, params)

    def wait(self, job_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = 1.0) -> JobView:
        """The job once it has ended, in whatever state. The service tells at once: this polls only where it is away.

        Raises:
            WaitTimeout: it has not ended after `timeout_seconds`.
        """
        deadline = float("inf") if timeout_seconds is None else time.monotonic() + timeout_seconds
        patience = _Patience(self._patience_seconds)
        while True:
            asked_at = time.monotonic()
            left = max(0.0, deadline - asked_at)
            seconds = min(left, self._poll_seconds)
            with patience:
                answer = self._http.json("GET", job_path(job_id, "wait"), params={"timeout": round(seconds, 3)})
                job = JobView.model_validate(answer)
                if job.done:
                    return job
            if time.monotonic() > deadline:
                raise WaitTimeout(f"{job_id} has not ended after {timeout_seconds:g} s")
            if time.monotonic() - asked_at < seconds:  # it shuts down, or is away
                time.sleep(min(poll_seconds, left))

    # --- what a job tells -----------------------------------------------------------------------------------------

    def events(self, job_id: str, *, after_seq: int = 0, page_size: int = 1000) -> Iterator[JobEventView]:
        """What happened to the job after event `after_seq`, oldest first; pages are fetched as they are needed."""
        params = {"after_seq": after_seq, "limit": page_size}
        return pages(self._http, job_path(job_id, "events"), JobEventView, params)

    def watch(self, job_id: str, *, after: str = "0", poll_seconds: float = 1.0) -> Iterator[Update]:
        """The job now, then everything that happens, each once, then `End`.

        Steps that a run was rolled back over come again, behind the event that says so. A broken stream is taken up
        where it broke. Where streams do not come through (a proxy), the job is polled. `after` is the cursor of an
        earlier update.
        """
        cursor, streams = after, True
        patience = _Patience(self._patience_seconds)
        while True:
            with patience:
                try:
                    for update in self._stream(job_id, cursor) if streams else self._poll(job_id, cursor):
                        cursor = update.cursor
                        patience.reset()
                        yield update
                        if isinstance(update, End):
                            return
                except ProtocolError:
                    streams = False
            time.sleep(poll_seconds)

    def metrics(
        self, job_id: str, *, keys: Sequence[str] = (), from_step: int = 0, max_points: int = 1000
    ) -> MetricsView:
        """Metrics by step; all keys unless `keys` names some. More than `max_points` steps are downsampled."""
        params = {"keys": list(keys) or None, "from_step": from_step, "max_points": max_points}
        answer = self._http.json("GET", job_path(job_id, "metrics"), params=_given(params))
        return MetricsView.model_validate(answer)

    def samples(
        self,
        job_id: str,
        *,
        step: int | None = None,
        evaluation: bool | None = None,
        sort: SampleSort = SampleSort.INDEX,
        page_size: int = 100,
    ) -> Iterator[SampleView]:
        """Stored responses of a step, by default of the latest step that has some; pages are fetched as needed.

        `evaluation`: only answers to the evaluation set, or only others.
        """
        params = {
            "step": step,
            "evaluation": evaluation,
            "sort": None if sort is SampleSort.INDEX else str(sort),
            "limit": page_size,
        }
        return pages(self._http, job_path(job_id, "samples"), SampleView, _given(params))

    def logs(self, job_id: str, *, tail: int = 200, attempt: int | None = None) -> LogsView:
        """The end of an attempt's log, by default of the latest attempt."""
        params = _given({"tail": tail, "attempt": attempt})
        return LogsView.model_validate(self._http.json("GET", job_path(job_id, "logs"), params=params))

    # --- results --------------------------------------------------------------------------------------------------

    def checkpoints(self, job_id: str) -> Sequence[CheckpointView]:
        """Checkpoints that can be downloaded, oldest first."""
        return list(pages(self._http, job_path(job_id, "checkpoints"), CheckpointView, {"page_size": 200}))

    def choose_checkpoint(self, job_id: str, step: int | None = None) -> CheckpointView:
        """The checkpoint of a step, or the last one.

        Raises:
            NoCheckpoint: there is none.
        """
        available = self.checkpoints(job_id)
        wanted = [checkpoint for checkpoint in available if step is None or checkpoint.step == step]
        if not wanted:
            steps = ", ".join(str(checkpoint.step) for checkpoint in available) or "none"
            raise NoCheckpoint(f"{job_id} has no such checkpoint; steps that have one: {steps}")
        return wanted[-1]

    def best_step(self, job_id: str) -> int:
        """Step of the best checkpoint that is kept.

        Raises:
            NoCheckpoint: none is ranked.
        """
        step = self.get(job_id).best_checkpoint_step
        if step is None:
            raise NoCheckpoint(f"{job_id} has no checkpoint that is ranked by a metric")
        return step

    def _stream(self, job_id: str, cursor: str) -> Iterator[Update]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": cursor}
        path = job_path(job_id, "events")
        with self._http.stream(path, headers=headers, read_timeout_seconds=_STREAM_SILENCE_SECONDS) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise ProtocolError("the service did not open an event stream")
            yield from updates.from_stream(sse.parse(sse.lines(response.iter_text())))

    def _poll(self, job_id: str, cursor: str) -> Iterator[Update]:
        place = updates.Place.parse(cursor)
        # The job first: nothing of a job seen as done can be missed by what is read after it.
        job = self.get(job_id)
        events = list(self.events(job_id, after_seq=place.seq))
        for event in events:
            place = place.past_event(event)
        metrics = self.metrics(job_id, from_step=place.next_step)
        yield from updates.from_answers(cursor, job, events, metrics)


class _Patience:
    """Bears an unreachable service in a `with` block, until it has been away for too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, ServiceUnreachable | ServiceUnavailable):
            return time.monotonic() - self._last_contact < self._seconds
        self.reset()
        return isinstance(error, httpx.TransportError)

    def reset(self) -> None:
        """The service has answered."""
        self._last_contact = time.monotonic()


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
