"""Protobuf to the domain and back. The only place that knows both, beside the servicer that calls it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from api.rpc.v1 import job_service_pb2 as pb
from api.watch import Cursor, End, Gap, Happened, Heartbeat, Snapshot, Update
from jobs.errors import InvalidArgument
from jobs.states import JobState
from jobs.views import (
    AttemptView,
    CheckpointView,
    HealthView,
    JobError,
    JobEventView,
    JobView,
    MetricsView,
)

_PREFIX = "JOB_STATE_"


def spec_document(spec: pb.JobSpec) -> dict[str, Any]:
    """The spec as the JSON it stands for."""
    return document(spec)


def document(message: Message) -> dict[str, Any]:
    """A body as the JSON it stands for: only fields that are present, whole numbers as numbers.

    Protobuf's own JSON writes 64-bit integers as text, which the spec's strict types refuse.
    """
    return {field.name: _plain(field, value) for field, value in message.ListFields()}


def _plain(field: Any, value: Any) -> Any:
    if _is_map(field):
        return dict(value)
    if field.is_repeated:
        return [_plain_one(item) for item in value]
    return _plain_one(value)


def _plain_one(value: Any) -> Any:
    if isinstance(value, struct_pb2.Struct):
        return json_format.MessageToDict(value)
    if isinstance(value, Message):
        return document(value)
    return value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def job(view: JobView) -> pb.Job:
    """A job for the wire."""
    message = pb.Job(
        id=view.id,
        name=view.name,
        state=state(view.state),
        phase=view.phase,
        done=view.done,
        allowed_actions=view.allowed_actions,
        spec_hash=view.spec_hash,
        labels=view.labels,
        attempt=view.attempt,
        max_attempts=view.max_attempts,
        progress=pb.Progress(**view.progress.model_dump()),
        latest_metrics=view.latest_metrics,
        health=view.health,
        stop_reason=view.stop_reason,
        error=error(view.error),
        last_checkpoint_step=view.last_checkpoint_step,
        best_checkpoint_step=view.best_checkpoint_step,
        parent=None if view.parent is None else pb.Parent(**view.parent.model_dump()),
        microbatch_size=view.microbatch_size,
        create_time=moment(view.create_time),
        start_time=moment(view.start_time),
        end_time=moment(view.end_time),
        update_time=moment(view.update_time),
        cancel_request_time=moment(view.cancel_request_time),
        stop_request_time=moment(view.stop_request_time),
        pause_request_time=moment(view.pause_request_time),
        queue=None if view.queue is None else pb.Queue(**view.queue.model_dump()),
        etag=view.etag,
        links=view.links,
    )
    json_format.ParseDict(view.spec, message.spec)
    return message


def error(view: JobError | None) -> pb.JobError | None:
    """Why a job or an attempt failed, for the wire."""
    return None if view is None else pb.JobError(**view.model_dump())


def attempt(view: AttemptView) -> pb.Attempt:
    """An attempt for the wire."""
    return pb.Attempt(
        attempt=view.attempt,
        worker_id=view.worker_id,
        start_time=moment(view.start_time),
        ready_time=moment(view.ready_time),
        end_time=moment(view.end_time),
        from_step=view.from_step,
        to_step=view.to_step,
        outcome=view.outcome,
        charged=view.charged,
        error=error(view.error),
    )


def health(view: HealthView) -> pb.GetHealthResponse:
    """A run's health for the wire."""
    findings = [pb.HealthFinding(**finding.model_dump()) for finding in view.findings]
    return pb.GetHealthResponse(job_id=view.job_id, step=view.step, status=view.status, findings=findings)


def event(view: JobEventView) -> pb.JobEvent:
    """An event for the wire."""
    message = pb.JobEvent(
        seq=view.seq,
        time=moment(view.time),
        type=view.type,
        state=state(view.state),
        attempt=view.attempt,
        message=view.message,
    )
    message.data.SetInParent()  # an empty object is there, as in JSON
    message.data.update(view.data)
    return message


def checkpoint(view: CheckpointView) -> pb.Checkpoint:
    """A checkpoint for the wire."""
    return pb.Checkpoint(**view.model_dump(exclude={"create_time"}), create_time=moment(view.create_time))


def update(item: Update, place: Cursor) -> pb.WatchJobResponse:
    """One message of a stream."""
    cursor = pb.Cursor(seq=place.seq, step=place.step)
    if isinstance(item, Snapshot):
        return pb.WatchJobResponse(job=job(item.job), cursor=cursor)
    if isinstance(item, End):
        return pb.WatchJobResponse(job=job(item.job), cursor=cursor, terminal=True)
    if isinstance(item, Happened):
        return pb.WatchJobResponse(event=event(item.event), cursor=cursor)
    if isinstance(item, Heartbeat):
        return pb.WatchJobResponse(heartbeat=pb.Heartbeat(), cursor=cursor)
    if isinstance(item, Gap):
        return pb.WatchJobResponse(gap=pb.Gap(from_step=item.from_step, to_step=item.to_step), cursor=cursor)
    step = pb.StepMetrics(step=item.step, time=moment(item.time), metrics=item.metrics)
    return pb.WatchJobResponse(step=step, cursor=cursor)


def metrics(view: MetricsView) -> pb.QueryMetricsResponse:
    """Metrics for the wire; a step that lacks a key has no point there."""
    series = {key: pb.Series(points=_points(view, column)) for key, column in view.series.items()}
    return pb.QueryMetricsResponse(series=series, downsampled=view.downsampled)


def _points(view: MetricsView, column: list[float | None]) -> Iterator[pb.Point]:
    for step, at, value in zip(view.steps, view.times, column, strict=True):
        if value is not None:
            yield pb.Point(step=step, time=moment(at), value=value)


def state(value: JobState) -> pb.JobState.ValueType:
    """A state for the wire."""
    return pb.JobState.Value(_PREFIX + value.name)


def states(values: Iterable[pb.JobState.ValueType]) -> list[JobState]:
    """States of a filter.

    Raises:
        InvalidArgument: unspecified, or not known to this service.
    """
    try:
        return [JobState[pb.JobState.Name(value).removeprefix(_PREFIX)] for value in values]
    except (KeyError, ValueError) as error:
        raise InvalidArgument("`states` holds a state that this service does not know") from error


def moment(value: datetime | None) -> Timestamp | None:
    """A time for the wire."""
    if value is None:
        return None
    message = Timestamp()
    message.FromDatetime(value)
    return message
