"""Errands listed and cancelled, through both doors and with the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
import pytest

from api.rpc.v1 import job_service_pb2 as pb
from jobs.auth import LOCAL, Principal, create_key
from jobs.db import Database
from jobs.errand_work import answer_errand, claim_errand
from jobs.errands import ask
from jobs.principal import Scope
from ppo_client import cli
from ppo_engine.errands import ErrandKind
from tests.integration.jobs.test_errands import ANSWER
from tests.support.attempts import BOB, submitted
from tests.support.errand_desk import alive
from tests.support.grpc_api import refusal, stub_at
from tests.support.http_api import PEPPER, App, served_on, settings
from tests.support.problem_json import problem


def asked(db: Database, owner: Principal = LOCAL, job_id: str | None = None) -> str:
    alive(db)
    return ask(db, owner, kind=ErrandKind.PREVIEW_REWARD, request={}, queue="default", job_id=job_id)


def answered(db: Database) -> str:
    errand_id = asked(db)
    claim = claim_errand(db, worker_id="w", queues=["default"], lease_seconds=60)
    assert claim is not None
    assert claim.id == errand_id
    answer_errand(db, claim, ANSWER)
    return errand_id


def test_errands_are_listed_and_cancelled(sqlite_app: App) -> None:
    db = sqlite_app.context.db
    done, job_id = answered(db), submitted(db, LOCAL)
    waiting = asked(db, job_id=job_id)
    first = sqlite_app.get("/v1/errands", params={"page_size": 1}).json()
    token = first["next_page_token"]
    second = sqlite_app.get("/v1/errands", params={"page_size": 1, "page_token": token}).json()
    assert [item["id"] for item in (*first["items"], *second["items"])] == [waiting, done]
    assert (second["next_page_token"], second["items"][0]["preview"]) == (None, None)
    found = sqlite_app.get("/v1/errands", params={"state": "waiting", "kind": "preview_reward", "job_id": job_id})
    assert [item["id"] for item in found.json()["items"]] == [waiting]
    for _ in range(2):
        answer = sqlite_app.post(f"/v1/errands/{waiting}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    document = problem(sqlite_app.post(f"/v1/errands/{done}/cancel"), 409, "illegal_transition")
    assert (document["state"], document["allowed_actions"]) == ("succeeded", [])
    answer = sqlite_app.get(f"/v1/errands/{waiting}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, "cancelled")


def test_what_cannot_be_listed_is_refused(sqlite_app: App) -> None:
    theirs = submitted(sqlite_app.context.db, BOB)
    for params in ({"kind": "x"}, {"state": "x"}, {"page_size": 0}, {"page_token": "x"}, {"stat": "waiting"}):
        problem(sqlite_app.get("/v1/errands", params=params), 400, "invalid_argument")
    for job_id in (theirs, "job_x", "\x00"):
        problem(sqlite_app.get("/v1/errands", params={"job_id": job_id}), 404, "not_found")
    for errand_id in (asked(sqlite_app.context.db, BOB), "errand_x", "%00"):
        problem(sqlite_app.post(f"/v1/errands/{errand_id}/cancel"), 404, "not_found")


def test_who_waits_for_one_that_is_cancelled_is_told(sqlite_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    db = sqlite_app.context.db

    def ask_and_cancel(*args: object, **_: object) -> str:
        errand_id = asked(db)
        sqlite_app.post(f"/v1/errands/{errand_id}/cancel")
        return errand_id

    monkeypatch.setattr("api.http.errand_routes.ask_preview", ask_and_cancel)
    document = problem(sqlite_app.post("/v1/rewards/preview", json={}), 422, "errand_refused")
    assert document["errors"][0]["code"] == "cancelled"


def test_reading_keys_list_and_do_not_cancel(sqlite_app: App) -> None:
    db = sqlite_app.context.db
    errand_id = asked(db, Principal("ann"))
    reader = {"Authorization": f"Bearer {create_key(db, 'ann', PEPPER, scopes={Scope.READ})}"}
    assert [item["id"] for item in sqlite_app.get("/v1/errands", headers=reader).json()["items"]] == [errand_id]
    assert sqlite_app.post(f"/v1/errands/{errand_id}/cancel", headers=reader).json()["scope"] == "control"


def test_grpc_and_the_command_say_the_same(
    sqlite_url: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = Database(sqlite_url)
    done, waiting, unwanted = answered(db), asked(db), asked(db)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0)
    with served_on(db, given) as served, stub_at(served.grpc) as stub:

        def ppo(*words: str) -> str:
            """What the command prints; the doors log to the same place."""
            monkeypatch.setattr(sys, "argv", ["ppo", "errands", *words, "--url", served.http])
            with pytest.raises(SystemExit) as caught:
                cli.main()
            assert not caught.value.code
            lines = capsys.readouterr().out.splitlines()
            return "\n".join(line for line in lines if "[info " not in line)

        page = stub.ListErrands(pb.ListErrandsRequest(page_size=2), timeout=60)
        rest = stub.ListErrands(pb.ListErrandsRequest(page_token=page.next_page_token), timeout=60)
        assert [one.id for one in (*page.errands, *rest.errands)] == [unwanted, waiting, done]
        assert rest.next_page_token == ""
        assert not rest.errands[0].HasField("preview")
        cancelled = stub.CancelErrand(pb.CancelErrandRequest(errand_id=unwanted), timeout=60).errand
        assert (cancelled.state, cancelled.done, cancelled.error.code) == ("cancelled", True, "cancelled")
        assert json.loads(ppo("cancel", unwanted, "--json"))["state"] == "cancelled"
        assert "cancelled" in ppo("cancel", waiting)
        assert [one["id"] for one in json.loads(ppo("--state", "cancelled", "--json"))] == [unwanted, waiting]
        assert done in ppo("--state", "succeeded")
        assert json.loads(ppo("show", done, "--json"))["preview"] is not None
        assert "no errands" in ppo("--kind", "export")
        found = refusal(lambda: stub.CancelErrand(pb.CancelErrandRequest(errand_id=done), timeout=60))
        assert (found.code, found.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "illegal_transition")
        found = refusal(lambda: stub.ListErrands(pb.ListErrandsRequest(state="gone"), timeout=60))
        assert found.violations == {"state": "unknown_value"}
    db.dispose()
