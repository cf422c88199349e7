"""Verbs, changes, waiting, attempts and health over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import Struct
from google.rpc import error_details_pb2 as details

from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub
from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.db import Database
from tests.support.attempts import ERROR, checkpoint, claimed, record_steps, submitted
from tests.support.grpc_api import refusal, stub_at
from tests.support.http_api import Served

pytestmark = pytest.mark.slow


@pytest.fixture
def stub(served: Served) -> Iterator[JobServiceStub]:
    with stub_at(served.grpc) as stub:
        yield stub


def test_a_job_is_changed_by_the_masked_fields_only(stub: JobServiceStub, database: Database):
    job_id = submitted(database, LOCAL, labels={"team": "a", "old": "x"})

    def update(*paths: str, etag: str = "", **values: object) -> pb.Job:
        mask = FieldMask(paths=paths)
        request = pb.UpdateJobRequest(job_id=job_id, update_mask=mask, etag=etag, **values)
        return stub.UpdateJob(request, timeout=60).job

    job = update("name", "labels.team", "labels.old", name="new", labels={"team": "b", "unmasked": "y"})
    assert (job.name, dict(job.labels), dict(job.spec.labels)) == ("new", {"team": "b"}, {"team": "a", "old": "x"})
    job = update("labels", name="unmasked", labels={"only": "z"}, etag=job.etag)
    assert (job.name, dict(job.labels)) == ("new", {"only": "z"})
    old = refusal(partial(update, "name", name="newer", etag="old"))
    assert (old.code, old.reason) == (grpc.StatusCode.ABORTED, "etag_mismatch")
    assert refusal(partial(update, "spec.seed")).violations == {"update_mask": "unknown_field"}
    assert update() == update("name", name="new")
    assert dict(update(labels={"without": "a mask"}).labels) == {"without": "a mask"}
    assert refusal(partial(update, "name")).violations == {"name": "required"}


def test_verbs_waiting_attempts_and_health(stub: JobServiceStub, database: Database):
    job_id = submitted(database, LOCAL)
    assert stub.PauseJob(pb.PauseJobRequest(job_id=job_id), timeout=60).job.state == pb.JOB_STATE_PAUSED
    refused = refusal(lambda: stub.StopJob(pb.StopJobRequest(job_id=job_id), timeout=60))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "illegal_transition")
    assert refused.details[details.ErrorInfo].metadata["allowed_actions"] == "cancel,resume"
    stub.ResumeJob(pb.ResumeJobRequest(job_id=job_id), timeout=60)
    held = claimed(database, job_id)
    record_steps(database, held, 1, 2)
    assert stub.StopJob(pb.StopJobRequest(job_id=job_id), timeout=60).job.HasField("stop_request_time")
    soon = pb.WaitJobRequest(job_id=job_id, timeout_seconds=0.01)
    assert not stub.WaitJob(soon, timeout=60).job.done
    lifecycle.succeed(database, held.lease)
    assert stub.WaitJob(pb.WaitJobRequest(job_id=job_id), timeout=60).job.done
    too_long = pb.WaitJobRequest(job_id=job_id, timeout_seconds=61)
    assert refusal(lambda: stub.WaitJob(too_long, timeout=60)).violations == {"timeout_seconds": "out_of_range"}
    (attempt,) = stub.ListAttempts(pb.ListAttemptsRequest(job_id=job_id), timeout=60).attempts
    assert (attempt.worker_id, attempt.from_step, attempt.to_step, attempt.outcome) == ("w1", 0, 2, "succeeded")
    health = stub.GetHealth(pb.GetHealthRequest(job_id=job_id), timeout=60)
    assert (health.step, health.status, list(health.findings)) == (2, "ok", [])


def test_a_cancelled_job_is_retried_once_and_a_trained_one_forked(stub: JobServiceStub, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    record_steps(database, held, 1, 2)
    lifecycle.record_checkpoint(database, held.lease, checkpoint(2))
    overrides = Struct()
    overrides.update({"ppo": {"steps": 7}, "optimizer": {"learning_rate": 1e-6}})

    def fork(**values: object) -> pb.ForkJobResponse:
        return stub.ForkJob(pb.ForkJobRequest(job_id=job_id, overrides=overrides, **values), timeout=60)

    for from_step in ("", "2", "last"):
        made = fork(from_step=from_step, name="longer", request_id="k")
        assert (made.created, made.job.name, made.job.spec.ppo.steps) == (from_step == "", "longer", 7)
        assert (made.job.parent.job_id, made.job.parent.step, made.job.progress.step) == (job_id, 2, 2)
    assert refusal(partial(fork, from_step="1")).code is grpc.StatusCode.NOT_FOUND
    assert refusal(partial(fork, from_step="first")).code is grpc.StatusCode.INVALID_ARGUMENT
    overrides.update({"model": {"policy": {"hub": "org/other"}}})
    assert refusal(fork).violations == {"spec.model.policy": "not_forkable"}
    lifecycle.fail(database, held.lease, ERROR)
    first, again = (stub.RetryJob(pb.RetryJobRequest(job_id=job_id), timeout=60) for _ in range(2))
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    assert not first.job.parent.HasField("step")
