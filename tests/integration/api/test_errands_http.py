"""Engine work through both doors: what is refused, what is answered, what comes later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from api.rpc.v1 import job_service_pb2 as pb
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.errand_work import claim_errand, fail_errand
from jobs.errands import ask
from jobs.views import JobError
from ppo_engine.errands import ErrandKind
from tests.support.attempts import BOB
from tests.support.errand_desk import alive, desk
from tests.support.grpc_api import refusal, stub_at
from tests.support.http_api import App, served_on, settings

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
        errand = stub.PreviewReward(request, timeout=20).errand
        assert (errand.state, errand.done) == ("succeeded", True)
        assert [score.total for score in errand.preview.scores] == [3.0, 0.5]
        assert errand.preview.components[1].failed == 1
        assert stub.GetErrand(pb.GetErrandRequest(errand_id=errand.id), timeout=20).errand == errand
        request.request.rewards[0].rule.name = "lenght"
        found = refusal(lambda: stub.PreviewReward(request, timeout=20))
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
        assert found.violations == {"rewards[0].rule.name": "unknown_rule"}
        unknown = pb.GetErrandRequest(errand_id="errand_x", timeout_seconds=0)
        assert refusal(lambda: stub.GetErrand(unknown, timeout=20)).code is grpc.StatusCode.NOT_FOUND
        wrong = pb.GetErrandRequest(errand_id=errand.id, timeout_seconds=121)
        assert refusal(lambda: stub.GetErrand(wrong, timeout=20)).violations == {"timeout_seconds": "out_of_range"}
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
    start = time.monotonic()
    answer = sqlite_app.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")
    assert "queue `default`" in answer.json()["detail"]
    assert time.monotonic() - start < 5


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
