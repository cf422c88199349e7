"""A plan through the front door: the same problems as a submit, and nothing is created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from api.rpc.v1 import job_service_pb2 as pb
from jobs.db import Database
from jobs.plan_views import PlanView
from ppo_client.client import PPOClient
from tests.support.errand_desk import alive, desk, do_next
from tests.support.grpc_api import stub_at
from tests.support.http_api import App, served_on, settings
from tests.support.specs import spec_document
from tests.support.tiny_models import tiny_llama


def local(**overrides: Any) -> dict[str, Any]:
    """A spec whose model is under the service's root."""
    return spec_document(model__policy={"path": "tiny"}, **overrides)


def planned(app: App, document: dict[str, Any]) -> dict[str, Any]:
    answer = app.post("/v1/jobs/plan", json=document)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_a_sound_spec_is_planned_and_nothing_is_created(sqlite_app: App):
    plan = planned(sqlite_app, local())
    assert (plan["ok"], plan["errors"], plan["probed"]) == (True, [], False)
    assert plan["not_probed"]
    assert sqlite_app.get("/v1/jobs").json()["items"] == []


def test_the_work_is_counted(sqlite_app: App):
    document = local(
        ppo={"steps": 5, "batch_size": 10, "minibatch_size": 4, "ppo_epochs": 3, "gradient_accumulation_steps": 2},
        generation={"max_new_tokens": 8},
        evaluation={"prompts": {"inline": ["x"]}, "every_steps": 2},
        checkpoint={"every_steps": 2},
    )
    work = planned(sqlite_app, document)["work"]
    # 10 responses make minibatches of 4, 4 and 2, and those optimizer steps of 2 and 1; 3 passes; 5 steps.
    assert (work["samples"], work["minibatches"], work["optimizer_steps"]) == (50, 45, 30)
    assert (work["response_tokens_max"], work["trained_tokens_max"]) == (400, 1200)
    # before training, after steps 2 and 4, and at the end
    assert (work["evaluations"], work["checkpoints"]) == (4, 3)
    assert work["prompt_tokens"] is None


def test_it_reports_what_a_submit_would_and_files_beside_broken_fields(sqlite_app: App):
    document = local(prompts={"file": {"path": "nowhere.jsonl"}})
    document["ppo"]["batch_sise"] = 4
    document["optimizer"] = {"learning_rate": -1}
    refused = sqlite_app.post("/v1/jobs", json=document).json()["errors"]
    plan = planned(sqlite_app, document)
    assert not plan["ok"]
    same = [{name: value for name, value in problem.items() if value is not None} for problem in plan["errors"]]
    assert same[: len(refused)] == refused
    assert {problem["pointer"]: problem["code"] for problem in plan["errors"]} == {
        "/ppo/batch_sise": "unknown_field",
        "/optimizer/learning_rate": "out_of_range",
        "/prompts/file/path": "source_unusable",
    }
    assert plan["work"] is None


def test_a_missing_file_alone_leaves_the_rest_of_the_plan(sqlite_app: App):
    plan = planned(sqlite_app, local(prompts={"file": {"path": "nowhere.jsonl"}}))
    assert [problem["code"] for problem in plan["errors"]] == ["source_unusable"]
    assert plan["work"]["samples"] == 20


def test_a_body_that_is_no_object_is_refused(sqlite_app: App):
    answer = sqlite_app.post("/v1/jobs/plan", content=b"[1]", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")


def test_a_queue_that_nobody_serves_is_said(sqlite_app: App):
    warnings = planned(sqlite_app, local(resources={"queue": "moon"}))["warnings"]
    assert "no_worker" in [warning["code"] for warning in warnings if warning["pointer"] == "/resources/queue"]


# --- with a worker that looks -------------------------------------------------------------------------------------


@pytest.fixture
def working(sqlite_app: App, home: Path) -> Iterator[App]:
    """The app with a real model under its root, and a worker that does errands."""
    tiny_llama(home / "models" / "llama")
    (home / "runs").mkdir()
    with desk(sqlite_app.context.db, home):
        yield sqlite_app


def real(**overrides: Any) -> dict[str, Any]:
    return spec_document(model__policy={"path": "llama"}, **overrides)


def test_a_worker_looks_at_the_run(working: App):
    plan = planned(working, real())
    assert (plan["ok"], plan["probed"], plan["not_probed"], plan["errors"]) == (True, True, None, [])
    assert plan["model"]["architecture"] == "LlamaForCausalLM"
    # One token per byte: "The movie was" has 13, "My dinner at" 12; 20 responses to 12.5 tokens on average.
    assert plan["prompts"]["tokens"]["maximum"] == 13
    assert plan["work"]["prompt_tokens"] == 250
    assert plan["work"]["passes_over_prompts"] == 10.0
    assert plan["rewards"][0]["tried"] == 8
    assert plan["memory"]["fits"]
    assert plan["disk"]["free_bytes"] > plan["disk"]["needed_bytes"]
    assert working.get("/v1/jobs").json()["items"] == []


def test_what_the_run_would_fail_of_is_an_error_with_its_code(working: App):
    plan = planned(working, real(generation={"max_new_tokens": 250}))
    (error,) = plan["errors"]
    assert (plan["ok"], error["pointer"], error["code"]) == (False, "/generation/max_new_tokens", "invalid_config")
    assert error["suggestion"]


def test_nobody_looks_at_what_a_submit_would_refuse(working: App):
    """A worker's engine can read the datasets of all owners: what it may open is decided before."""
    plan = planned(working, real(prompts={"file": {"path": "nowhere.jsonl"}}))
    assert (plan["probed"], plan["model"], plan["prompts"]) == (False, None, None)
    foreign = {"dataset": {"id": "ds_" + "0" * 26}}
    plan = planned(working, real(prompts=foreign))
    assert [error["code"] for error in plan["errors"]] == ["dataset_not_found"]
    assert not plan["probed"]


def test_a_worker_that_is_too_slow_leaves_the_rest_and_a_way_back(sqlite_app: App, home: Path):
    tiny_llama(home / "models" / "llama")
    alive(sqlite_app.context.db)
    answer = sqlite_app.post("/v1/jobs/plan?timeout=0.2", json=real()).json()
    assert (answer["ok"], answer["probed"]) == (True, False)
    assert answer["work"]["samples"] == 20
    errand_id = answer["not_probed"].split()[-1]
    assert do_next(sqlite_app.context.db, home)
    assert sqlite_app.get(f"/v1/errands/{errand_id}").json()["probe"]["model"]["layers"] == 2


def test_both_doors_plan_the_same(sqlite_url: str, home: Path):
    tiny_llama(home / "models" / "llama")
    db = Database(sqlite_url)
    documents = [real(), real(ppo={"steps": 0}), real(resources={"queue": "moon"})]
    given = settings(home, sqlite_url, http_port=0, grpc_port=0)
    with served_on(db, given) as served, desk(db, home), stub_at(served.grpc) as stub, PPOClient(served.http) as client:
        for document in documents:
            message = stub.PlanJob(pb.PlanJobRequest(spec=json_format.ParseDict(document, pb.JobSpec())))
            over_grpc = json_format.MessageToDict(message, preserving_proto_field_name=True)
            over_rest = client.plan(document)
            assert over_grpc.get("ok", False) == over_rest.ok
            assert _wire(over_grpc) == _wire(_sent(over_rest))
    db.dispose()


def _sent(plan: PlanView) -> dict[str, Any]:
    """A view as protobuf's JSON writes it."""
    message = json_format.ParseDict(plan.model_dump(mode="json", exclude_none=True), pb.PlanJobResponse())
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _wire(plan: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one look to the next."""
    for trial in plan.get("rewards", ()):
        trial.pop("seconds")
    plan.get("memory", {}).pop("available_bytes", None)
    plan.get("disk", {}).pop("free_bytes", None)
    return plan


def test_a_full_quota_is_an_error_now(sqlite_app: App):
    sqlite_app.request("PUT", "/v1/quotas/local", json={"max_queued_jobs": 0})
    plan = planned(sqlite_app, local())
    assert [error["code"] for error in plan["errors"]] == ["quota_exceeded"]
    assert sqlite_app.post("/v1/jobs", json=local()).json()["code"] == "quota_exceeded"
