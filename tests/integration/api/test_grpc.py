"""The gRPC door: every method, every refusal. One test has its server in another process, as clients do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from functools import partial
from itertools import product

import grpc
import httpx
import pytest
import sqlalchemy as sa
import structlog
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2 as details
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from api.rpc.server import SERVICES
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub
from jobs import lifecycle
from jobs.auth import LOCAL, Principal, create_key
from jobs.db import Database
from tests.support.attempts import checkpoint, claimed, record_steps, submitted
from tests.support.grpc_api import METHODS, called, message, refusal, stub_at
from tests.support.http_api import PEPPER, Process, Served
from tests.support.specs import spec_document

pytestmark = pytest.mark.slow

NOBODY = "job_" + "0" * 26


@pytest.fixture
def stub(served: Served) -> Iterator[JobServiceStub]:
    with stub_at(served.grpc) as stub:
        yield stub


def create(stub: JobServiceStub, request_id: str = "", **changes: object) -> pb.CreateJobResponse:
    spec = message(spec_document(**changes))
    return stub.CreateJob(pb.CreateJobRequest(spec=spec, request_id=request_id), timeout=60)


def test_a_job_is_the_same_through_both_doors(stub: JobServiceStub, served: Served, database: Database):
    created = create(stub, labels={"team": "demo"}, kl={"fixed": {}})
    assert created.created
    job_id = created.job.id
    held = claimed(database, job_id)
    record_steps(database, held, 1, 2)
    job = stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=60).job
    shown = httpx.get(f"{served.http}/v1/jobs/{job_id}", timeout=60).json()
    assert (job.id, job.name, job.etag, job.spec_hash) == tuple(shown[k] for k in ("id", "name", "etag", "spec_hash"))
    assert pb.JobState.Name(job.state) == f"JOB_STATE_{shown['state'].upper()}"
    assert (job.progress.step, job.progress.percent) == (2, shown["progress"]["percent"])
    assert dict(job.latest_metrics) == shown["latest_metrics"]
    assert dict(job.labels) == {"team": "demo"}
    assert job.create_time.ToDatetime(tzinfo=UTC).isoformat() == shown["create_time"].replace("Z", "+00:00")
    assert not job.HasField("end_time")
    assert job.spec.kl.WhichOneof("controller") == "fixed"
    assert job.spec.ppo.gamma == 1.0
    twin = httpx.post(
        f"{served.http}/v1/jobs", json=spec_document(labels={"team": "demo"}, kl={"fixed": {}}), timeout=60
    )
    assert twin.json()["spec_hash"] == job.spec_hash


def test_pages_filters_and_cancel(stub: JobServiceStub):
    ids = [create(stub, labels={"n": str(n % 2)}).job.id for n in range(5)]
    first = stub.ListJobs(pb.ListJobsRequest(page_size=3), timeout=60)
    second = stub.ListJobs(pb.ListJobsRequest(page_size=3, page_token=first.next_page_token), timeout=60)
    assert [job.id for job in [*first.jobs, *second.jobs]] == ids[::-1]
    assert second.next_page_token == ""
    odd = stub.ListJobs(pb.ListJobsRequest(labels={"n": "1"}), timeout=60)
    assert [job.id for job in odd.jobs] == [ids[3], ids[1]]
    for _ in range(2):
        cancelled = stub.CancelJob(pb.CancelJobRequest(job_id=ids[0]), timeout=60).job
        assert (cancelled.state, cancelled.done) == (pb.JOB_STATE_CANCELLED, True)
    found = stub.ListJobs(pb.ListJobsRequest(states=[pb.JOB_STATE_CANCELLED]), timeout=60)
    assert [job.id for job in found.jobs] == [ids[0]]


def test_metrics_are_points_of_the_keys_asked_for(stub: JobServiceStub, database: Database):
    held = claimed(database, submitted(database, LOCAL))
    record_steps(database, held, 1, 3)
    request = pb.QueryMetricsRequest(job_id=held.lease.job_id, keys=["ppo/mean_scores"], from_step=2)
    answer = stub.QueryMetrics(request, timeout=60)
    assert set(answer.series) == {"ppo/mean_scores"}
    points = answer.series["ppo/mean_scores"].points
    assert [(point.step, point.value) for point in points] == [(2, 0.2), (3, pytest.approx(0.3))]


def test_a_request_id_makes_create_repeatable(stub: JobServiceStub):
    first, again = create(stub, "r-1"), create(stub, "r-1")
    assert (first.created, again.created) == (True, False)
    assert first.job.id == again.job.id
    conflict = refusal(lambda: create(stub, "r-1", seed=1))
    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ALREADY_EXISTS, "idempotency_conflict")
    assert refusal(lambda: create(stub, "a b")).code is grpc.StatusCode.INVALID_ARGUMENT


def test_refusals_are_rich(stub: JobServiceStub, database: Database):
    bad = refusal(lambda: create(stub, ppo__steps=0, kl={"penalty": "kll"}, rewards=[{"name": "r"}]))
    assert (bad.code, bad.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_spec")
    assert bad.violations == {
        "spec.ppo.steps": "out_of_range",
        "spec.kl.penalty": "unknown_value",
        "spec.rewards[0]": "invalid",
    }
    assert len(bad.details[details.RequestInfo].request_id) == 32
    empty = refusal(lambda: stub.CreateJob(pb.CreateJobRequest(), timeout=60))
    assert set(empty.violations) == {"spec.name", "spec.model", "spec.prompts", "spec.rewards", "spec.ppo"}

    held = claimed(database, submitted(database, LOCAL))
    lifecycle.succeed(database, held.lease)
    late = refusal(lambda: stub.CancelJob(pb.CancelJobRequest(job_id=held.lease.job_id), timeout=60))
    assert (late.code, late.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "illegal_transition")
    assert late.details[details.ErrorInfo].metadata["state"] == "succeeded"


def test_what_names_nothing_is_refused_on_every_method(stub: JobServiceStub, served: Served):
    of_one_job = [method for method in METHODS.values() if "job_id" in method.input_type.fields_by_name]
    with grpc.insecure_channel(served.grpc) as channel:
        for method, job_id in product(of_one_job, (NOBODY, "", "x", "job_\x00")):
            if method.name == "ListErrands" and not job_id:
                continue  # there it is a filter, and without it come those of all jobs
            request = GetMessageClass(method.input_type)(job_id=job_id)
            assert refusal(partial(called, channel, method, request)).code is grpc.StatusCode.NOT_FOUND, method.name
    unusable = [
        pb.ListJobsRequest(page_size=-1),
        pb.ListJobsRequest(page_token="x"),
        pb.ListJobsRequest(states=[pb.JOB_STATE_UNSPECIFIED]),
        pb.ListJobsRequest(states=[77]),  # type: ignore[list-item]
        pb.ListJobsRequest(labels={"a": "\x00"}),
    ]
    for request in unusable:
        assert refusal(partial(stub.ListJobs, request, timeout=60)).reason == "invalid_argument"


def test_an_oversized_call_is_refused(stub: JobServiceStub):
    with pytest.raises(grpc.RpcError) as caught:
        create(stub, prompts={"inline": ["x" * 90_000] * 13})
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_defect_shows_an_id_and_nothing_else(stub: JobServiceStub, database: Database):
    job_id = submitted(database, LOCAL)
    with database.transaction() as session:
        session.execute(sa.text("UPDATE jobs SET spec = '\"a secret\"'"))
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        broken = refusal(lambda: stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=60))
    assert (broken.code, broken.reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert "secret" not in broken.text
    (line,) = [line for line in lines if line["event"] == "call_failed"]
    assert line["request_id"] == broken.details[details.RequestInfo].request_id


def test_request_ids_come_back_and_calls_are_counted(sqlite_process: Process):
    with stub_at(sqlite_process.grpc) as stub:
        _, call = stub.ListJobs.with_call(pb.ListJobsRequest(), metadata=[("x-request-id", "trace-7")], timeout=60)
        assert dict(call.initial_metadata())["x-request-id"] == "trace-7"
        refusal(lambda: stub.GetJob(pb.GetJobRequest(job_id=NOBODY), timeout=60))
    page = httpx.get(f"{sqlite_process.http}/metrics", timeout=60).text.splitlines()
    assert 'ppo_grpc_handled_total{code="OK",method="/ppo.v1.JobService/ListJobs"} 1.0' in page
    assert 'ppo_grpc_handled_total{code="NOT_FOUND",method="/ppo.v1.JobService/GetJob"} 1.0' in page


def test_health_and_reflection(served: Served):
    with grpc.insecure_channel(served.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICES):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(reflection.get_services())
        file = reflection.FindFileContainingSymbol("ppo.v1.JobService")
        told = {f"ppo.v1.JobService.{method.name}" for method in file.service[0].method}
        assert told == {name for name in METHODS if name.startswith("ppo.v1.JobService.")}


def test_once_a_key_exists_every_call_needs_one(served: Served, database: Database):
    ann = [("authorization", f"Bearer {create_key(database, 'ann', PEPPER)}")]
    theirs = submitted(database, Principal("bob"))
    with grpc.insecure_channel(served.grpc) as channel:
        for method in METHODS.values():
            request = GetMessageClass(method.input_type)()
            if of_one_job := "job_id" in request.DESCRIPTOR.fields_by_name:
                request.job_id = theirs
            for metadata in ([], [("authorization", "Bearer ppo_wrong")]):
                assert refusal(partial(called, channel, method, request, metadata)).reason == "unauthenticated"
            if of_one_job:
                assert refusal(partial(called, channel, method, request, ann)).reason == "not_found", method.name
        listed = called(channel, METHODS["ppo.v1.JobService.ListJobs"], pb.ListJobsRequest(), ann)
    assert listed == [pb.ListJobsResponse()]


def test_with_keys_probes_need_none_and_reflection_does(served: Served, database: Database):
    create_key(database, "ann", PEPPER)
    with grpc.insecure_channel(served.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_paused_job_is_resumed(stub: JobServiceStub, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    record_steps(database, held, 1, 2)
    lifecycle.record_checkpoint(database, held.lease, checkpoint(2, score=1.5))
    lifecycle.pause(database, held.lease, stop_reason="guard", message="paused at step 2: a guard")
    paused = stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=60).job
    assert (paused.state, paused.stop_reason) == (pb.JOB_STATE_PAUSED, "guard")
    assert (list(paused.allowed_actions), paused.best_checkpoint_step) == (["cancel", "resume", "fork"], 2)
    for _ in range(2):
        assert stub.ResumeJob(pb.ResumeJobRequest(job_id=job_id), timeout=60).job.state == pb.JOB_STATE_QUEUED
