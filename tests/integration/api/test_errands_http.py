"""Engine work through both doors: what is refused, what is answered, what comes later."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from api.rpc.v1 import job_service_pb2 as pb
from jobs import service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.errand_work import claim_errand, fail_errand
from jobs.errands import ask
from jobs.views import JobError
from ppo_engine.errands import ErrandKind
from tests.support.attempts import BOB, checkpoint, claimed, record_steps_and_checkpoint, submitted
from tests.support.errand_desk import alive, desk
from tests.support.grpc_api import refusal, stub_at
from tests.support.http_api import App, served_on, settings
from tests.support.specs import make_spec
from tests.support.tiny_models import tiny_llama

BODY: dict[str, Any] = {
    "rewards": [
        {"name": "words", "rule": {"name": "length", "params": {"target": 2}}},
        {"name": "sum", "weight": 2.0, "on_error": "zero", "rule": {"name": "numeric"}},
    ],
    "texts": [
        {"prompt": "2 + 2 =", "response": "about 4", "record": {"answer": "4"}},
        {"prompt": "2 + 2 =", "response": "5"},
    ],
}
PATH = "/v1/rewards/preview"


@pytest.fixture
def working(sqlite_app: App, home: Path) -> Iterator[App]:
    """The app, with a worker that does errands."""
    with desk(sqlite_app.context.db, home):
        yield sqlite_app


def test_a_preview_is_answered_while_the_caller_waits(working: App) -> None:
    answer = working.post(PATH, json=BODY)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["kind"], found["state"], found["done"], found["error"]) == ("preview_reward", "succeeded", True, None)
    first, second = found["preview"]["scores"]
    assert (first["total"], first["components"]) == (3.0, {"words": 1.0, "sum": 1.0})
    assert (second["total"], set(second["errors"])) == (0.5, {"sum"})
    again = working.get(answer.headers["location"])
    assert again.json() == found


def test_both_doors_say_the_same(sqlite_url: str, home: Path) -> None:
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0)
    with served_on(db, given) as served, desk(db, home), stub_at(served.grpc) as stub:
        request = pb.PreviewRewardRequest()
        json_format.ParseDict(BODY, request.request)
        errand = stub.PreviewReward(request, timeout=60).errand
        assert (errand.state, errand.done) == ("succeeded", True)
        assert [score.total for score in errand.preview.scores] == [3.0, 0.5]
        assert errand.preview.components[1].failed == 1
        assert stub.GetErrand(pb.GetErrandRequest(errand_id=errand.id), timeout=60).errand == errand
        request.request.rewards[0].rule.name = "lenght"
        found = refusal(lambda: stub.PreviewReward(request, timeout=60))
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
        assert found.violations == {"rewards[0].rule.name": "unknown_rule"}
        unknown = pb.GetErrandRequest(errand_id="errand_x", timeout_seconds=0)
        assert refusal(lambda: stub.GetErrand(unknown, timeout=60)).code is grpc.StatusCode.NOT_FOUND
        wrong = pb.GetErrandRequest(errand_id=errand.id, timeout_seconds=121)
        assert refusal(lambda: stub.GetErrand(wrong, timeout=60)).violations == {"timeout_seconds": "out_of_range"}
    db.dispose()


def test_what_takes_longer_is_fetched_later(sqlite_app: App, home: Path) -> None:
    alive(sqlite_app.context.db)
    answer = sqlite_app.post(PATH, json=BODY, params={"timeout": 0})
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
    assert answer.headers["retry-after"] == "1"
    place = answer.headers["location"]
    assert sqlite_app.get(place, params={"timeout": 0.1}).status_code == 202
    with desk(sqlite_app.context.db, home):
        later = sqlite_app.get(place)
    assert (later.status_code, later.json()["state"]) == (200, "succeeded")


def test_without_a_worker_it_is_refused_at_once(sqlite_app: App) -> None:
    answer = sqlite_app.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
    assert "queue `default`" in answer.json()["detail"]


def test_every_mistake_is_told_at_once(refusing: App) -> None:
    body = {
        "rewards": [
            {"name": "a", "rule": {"name": "length", "params": {"targt": 2}}},
            {"name": "a", "model": {"source": {"path": "/etc"}}},
        ],
        "texts": [{"prompt": "p", "response": 3}],
        "quene": "x",
    }
    answer = refusing.post(PATH, json=body)
    assert answer.status_code == 422
    problems = {problem["pointer"]: problem["code"] for problem in answer.json()["errors"]}
    assert problems["/texts/0/response"] == "wrong_type"
    assert problems["/quene"] == "unknown_field"
    assert problems["/rewards/0/rule/params/targt"] == "unknown_field"
    assert problems["/rewards/1/name"] == "duplicate_name"
    sound = {**BODY, "rewards": [{"name": "a", "model": {"source": {"path": "/etc"}}}]}
    answer = refusing.post(PATH, json=sound)
    assert [(p["pointer"], p["code"]) for p in answer.json()["errors"]] == [
        ("/rewards/0/model/source/path", "source_unusable")
    ]
    many = {**BODY, "texts": BODY["texts"] * 129}
    assert refusing.post(PATH, json=many).json()["errors"][0]["code"] == "too_long"


@pytest.mark.parametrize(
    ("category", "status", "code"), [("user", 422, "errand_refused"), ("capacity", 502, "errand_failed")]
)
def test_a_failure_is_a_refusal_that_says_why(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch, category: str, status: int, code: str
) -> None:
    db = sqlite_app.context.db
    alive(db)

    def ask_and_fail(*args: Any, **_: Any) -> str:
        errand_id = ask(db, LOCAL, kind=ErrandKind.PREVIEW_REWARD, request={}, queue="default")
        claim = claim_errand(db, worker_id="w", queues=["default"], lease_seconds=60)
        assert claim is not None
        error = JobError(code="gone", category=category, message="It is gone.", suggestion="Find it.", attempt=1)
        fail_errand(db, claim, error)
        return errand_id

    monkeypatch.setattr("api.http.errand_routes.ask_preview", ask_and_fail)
    answer = sqlite_app.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["detail"] == "It is gone. Find it."
    assert answer.json()["errors"][0]["code"] == "gone"


def test_anothers_errand_is_not_there(sqlite_app: App) -> None:
    db = sqlite_app.context.db
    alive(db)
    theirs = ask(db, BOB, kind=ErrandKind.PREVIEW_REWARD, request={}, queue="default")
    for errand_id in (theirs, "errand_x", "%00"):
        answer = sqlite_app.get(f"/v1/errands/{errand_id}", params={"timeout": 0})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


# --- generation ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A job with a checkpoint of step 2, whose weights are not those before training."""

    id: str

    def path(self, verb: str = "generate") -> str:
        return f"/v1/jobs/{self.id}/{verb}"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small models."""
    folder = tmp_path_factory.mktemp("weights")
    tiny_llama(folder / "before", seed=0)
    tiny_llama(folder / "after", seed=1)
    return folder


@pytest.fixture
def trained(sqlite_app: App, home: Path, weights: Path) -> Trained:
    """Its job."""
    db = sqlite_app.context.db
    shutil.copytree(weights / "before", home / "models" / "llama")
    reward = {"name": "words", "rule": {"name": "length", "params": {"target": 2}}}
    spec = make_spec(model={"policy": {"path": "llama"}}, rewards=[reward], resources={"device": "cpu"})
    job, _ = service.submit(db, LOCAL, spec, roots=[home / "models"])
    held = claimed(db, job.id)
    record_steps_and_checkpoint(db, held, 1, 2)
    shutil.copytree(weights / "after", home / "runs" / job.id / checkpoint(2).path / "model")
    return Trained(job.id)


def test_a_checkpoint_answers_beside_the_policy_before_training(working: App, trained: Trained) -> None:
    body = {"prompts": ["It is", "A"], "step": 2, "compare_to": ["base"], "temperature": 0, "score": True}
    answer = working.post(trained.path(), json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()["generation"]
    assert found["prompts"] == ["It is", "A"]
    after, before = found["answers"]
    assert (after["name"], after["step"], before["name"], before["step"]) == ("2", 2, "base", None)
    assert [one["response"] for one in after["responses"]] != [one["response"] for one in before["responses"]]
    assert all(one["score"] == one["components"]["words"] for one in after["responses"])
    last = working.post(trained.path(), json={"prompts": ["It is", "A"], "temperature": 0})
    assert [one["response"] for one in last.json()["generation"]["answers"][0]["responses"]] == [
        one["response"] for one in after["responses"]
    ]


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"prompts": []}, "/prompts", "too_short"),
        ({"prompts": [""]}, "/prompts/0", "too_short"),
        ({"step": "worst"}, "/step", "bad_format"),
        ({"step": True}, "/step", "wrong_type"),
        ({"compare_to": ["base", "base"]}, "/compare_to/1", "duplicate_name"),
        ({"records": [{}, {}]}, "/records", "wrong_count"),
        ({"samples_per_prompt": 16, "prompts": ["a"] * 17}, "/samples_per_prompt", "too_many_responses"),
        (
            {"max_new_tokens": 4096, "prompts": ["a"] * 64, "samples_per_prompt": 2},
            "/max_new_tokens",
            "too_many_tokens",
        ),
        ({"temprature": 1}, "/temprature", "unknown_field"),
    ],
)
def test_a_generation_that_cannot_be_is_refused(
    sqlite_app: App, trained: Trained, change: dict[str, Any], pointer: str, code: str
) -> None:
    answer = sqlite_app.post(trained.path(), json={"prompts": ["It is"], **change})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert [(problem["pointer"], problem["code"]) for problem in answer.json()["errors"]] == [(pointer, code)]


def test_only_what_the_owner_has_answers(working: App, trained: Trained) -> None:
    for step in ("best", 1, "999999999999999999"):
        answer = working.post(trained.path(), json={"prompts": ["a"], "step": step})
        assert answer.status_code == 404
        assert "steps that have one: 2" in answer.json()["detail"]
    db = working.context.db
    theirs = submitted(db, BOB)
    for job_id in (theirs, "job_x", "no"):
        answer = working.post(f"/v1/jobs/{job_id}/generate", json={"prompts": ["a"], "step": "base"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_checkpoint_that_went_meanwhile_is_a_refusal(working: App, trained: Trained, home: Path) -> None:
    shutil.rmtree(home / "runs" / trained.id / checkpoint(2).path)
    answer = working.post(trained.path(), json={"prompts": ["a"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "errand_refused")
    assert answer.json()["errors"][0]["code"] == "checkpoint_gone"


def test_grpc_generates_too(sqlite_app: App, trained: Trained, home: Path, sqlite_url: str) -> None:
    db = sqlite_app.context.db
    given = settings(home, sqlite_url, http_port=0, grpc_port=0)
    with served_on(db, given) as served, desk(db, home), stub_at(served.grpc) as stub:
        asked = pb.GenerationRequest(prompts=["It is"], step="2", temperature=0.0, samples_per_prompt=2)
        errand = stub.Generate(pb.GenerateRequest(job_id=trained.id, request=asked), timeout=60).errand
        (by,) = errand.generation.answers
        assert (by.step, [one.sample for one in by.responses]) == (2, [0, 1])
        assert by.responses[0].response == by.responses[1].response
        asked.step = "worst"
        found = refusal(lambda: stub.Generate(pb.GenerateRequest(job_id=trained.id, request=asked), timeout=60))
        assert found.violations == {"step": "bad_format"}
