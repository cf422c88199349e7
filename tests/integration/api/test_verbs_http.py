"""Verbs, waiting, changes, attempts and health through the doors."""

from __future__ import annotations

import threading
import time

import pytest

from jobs import lifecycle
from jobs.auth import LOCAL, Principal
from jobs.updating import JobPatch
from ppo_engine.events import StepDone
from tests.support.attempts import ERROR, checkpoint, claimed, give_back, record_steps, submitted
from tests.support.http_api import App
from tests.support.problem_json import pointers, problem

PATCH = {"Content-Type": "application/merge-patch+json"}


def test_verbs_answer_with_the_job_and_its_etag(sqlite_app: App):
    job_id = submitted(sqlite_app.context.db, LOCAL)
    for verb, state in (("pause", "paused"), ("pause", "paused"), ("resume", "queued"), ("pause", "paused")):
        answer = sqlite_app.post(f"/v1/jobs/{job_id}/{verb}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert answer.headers["etag"] == f'"{answer.json()["etag"]}"'
    refused = problem(sqlite_app.post(f"/v1/jobs/{job_id}/stop"), 409, "illegal_transition")
    assert (refused["state"], refused["allowed_actions"]) == ("paused", ["cancel", "resume"])
    sqlite_app.post(f"/v1/jobs/{job_id}/resume")
    claimed(sqlite_app.context.db, job_id)
    assert sqlite_app.post(f"/v1/jobs/{job_id}/pause").json()["pause_request_time"]
    stopping = sqlite_app.post(f"/v1/jobs/{job_id}/stop").json()
    assert (stopping["state"], stopping["pause_request_time"]) == ("running", None)
    assert stopping["stop_request_time"]


def test_what_is_somebody_elses_is_not_found(sqlite_app: App):
    theirs = submitted(sqlite_app.context.db, Principal("bob"))
    path = f"/v1/jobs/{theirs}"
    for verb in ("cancel", "pause", "resume", "stop"):
        problem(sqlite_app.post(f"{path}/{verb}"), 404, "not_found")
    for part in ("wait", "attempts", "health"):
        problem(sqlite_app.get(f"{path}/{part}"), 404, "not_found")
    problem(sqlite_app.request("PATCH", path, json={"name": "mine"}), 404, "not_found")


# --- wait ---------------------------------------------------------------------------------------------------------


def test_a_waiter_hears_of_the_end(app: App):
    db = app.context.db
    job_id = submitted(db, LOCAL)
    held = claimed(db, job_id)
    threading.Timer(0.3, lifecycle.succeed, [db, held.lease]).start()
    answer = app.get(f"/v1/jobs/{job_id}/wait?timeout=60")
    assert (answer.json()["state"], answer.elapsed.total_seconds() < 45) == ("succeeded", True)
    assert app.get(f"/v1/jobs/{job_id}/wait").json()["done"]


def test_a_waiter_is_answered_when_its_time_is_over(sqlite_app: App):
    job_id = submitted(sqlite_app.context.db, LOCAL)
    for seconds in (0, 0.3):
        started = time.monotonic()
        answer = sqlite_app.get(f"/v1/jobs/{job_id}/wait?timeout={seconds}")
        assert (answer.status_code, answer.json()["state"]) == (200, "queued")
        assert time.monotonic() - started >= seconds
    for wrong in ("-1", "61", "nan", "inf", "x"):
        problem(sqlite_app.get(f"/v1/jobs/{job_id}/wait?timeout={wrong}"), 400, "invalid_argument")


def test_a_hundred_waiters_hold_no_thread(sqlite_app: App):
    """More than all threads of the door together: where each held one, a plain request could not come through."""
    path = f"/v1/jobs/{submitted(sqlite_app.context.db, LOCAL)}"
    waiters = [sqlite_app.portal.start_task_soon(sqlite_app.client.get, f"{path}/wait?timeout=50") for _ in range(100)]
    time.sleep(1.0)
    assert sqlite_app.get(path).status_code == 200
    assert not any(waiter.done() for waiter in waiters)
    sqlite_app.portal.call(sqlite_app.context.stopping.set)
    assert {waiter.result(60).status_code for waiter in waiters} == {200}


# --- changes ------------------------------------------------------------------------------------------------------


def test_a_merge_patch_changes_labels_and_name_and_not_the_spec(app: App):
    job_id = submitted(app.context.db, LOCAL, labels={"team": "a", "old": "x"})
    path = f"/v1/jobs/{job_id}"
    body = {"name": "a better name", "labels": {"team": "b", "old": None, "new": ""}}
    for headers in (PATCH, {}):
        job = app.request("PATCH", path, json=body, headers=headers).json()
        assert (job["name"], job["labels"]) == ("a better name", {"team": "b", "new": ""})
    assert job == app.get(path).json()
    assert job["spec"]["labels"] == {"team": "a", "old": "x"}
    found = [app.get("/v1/jobs", params={"label": label}).json()["items"] for label in ("team=b", "team=a", "old=x")]
    assert [len(items) for items in found] == [1, 0, 0]
    assert app.request("PATCH", path, json={"labels": None}).json()["labels"] == {}
    assert app.request("PATCH", path, json={}).json()["name"] == "a better name"


def test_a_job_that_has_ended_can_be_labelled(sqlite_app: App):
    job_id = submitted(sqlite_app.context.db, LOCAL)
    sqlite_app.post(f"/v1/jobs/{job_id}/cancel")
    assert sqlite_app.request("PATCH", f"/v1/jobs/{job_id}", json={"labels": {"kept": "no"}}).status_code == 200


def test_a_patch_of_an_old_job_is_refused(sqlite_app: App):
    path = f"/v1/jobs/{submitted(sqlite_app.context.db, LOCAL)}"
    etag = sqlite_app.get(path).headers["etag"]
    body = {"labels": {"a": "1"}}
    changed = sqlite_app.request("PATCH", path, json=body, headers={"If-Match": f'"other", {etag}'})
    assert changed.status_code == 200
    for old in (etag, '"nonsense"', f"W/{changed.headers['etag']}"):
        problem(sqlite_app.request("PATCH", path, json=body, headers={"If-Match": old}), 412, "etag_mismatch")
    for fresh in (changed.headers["etag"], "*"):
        assert sqlite_app.request("PATCH", path, json=body, headers={"If-Match": fresh}).status_code == 200


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"nmae": "x"}, {"/nmae": "unknown_field"}),
        ({"name": None}, {"/name": "required"}),
        ({"name": "", "labels": {"!": "x"}}, {"/name": "too_short", "/labels/!": "bad_format"}),
        ({"labels": {"a": 5}}, {"/labels/a": "wrong_type"}),
        ({"labels": ["a"]}, {"/labels": "wrong_type"}),
        ({"labels": {f"k{n}": "" for n in range(33)}}, {"/labels": "too_long"}),
        ({"spec": {}}, {"/spec": "unknown_field"}),
    ],
)
def test_a_patch_that_cannot_be_is_refused_with_every_reason(sqlite_app: App, body: object, wrong: dict[str, str]):
    path = f"/v1/jobs/{submitted(sqlite_app.context.db, LOCAL)}"
    assert pointers(problem(sqlite_app.request("PATCH", path, json=body), 400, "invalid_argument")) == wrong


def test_a_patch_must_be_json(sqlite_app: App):
    path = f"/v1/jobs/{submitted(sqlite_app.context.db, LOCAL)}"
    text = {"Content-Type": "text/plain"}
    problem(sqlite_app.request("PATCH", path, content=b"{}", headers=text), 415, "unsupported_media_type")
    problem(sqlite_app.request("PATCH", path, content=b"[]", headers=PATCH), 400, "malformed_body")
    assert set(JobPatch.model_fields) == {"name", "labels"}


# --- attempts and health ------------------------------------------------------------------------------------------


def test_attempts_tell_who_how_far_and_why(app: App):
    db = app.context.db
    job_id = submitted(db, LOCAL)
    first = claimed(db, job_id)
    record_steps(db, first, 1, 3)
    give_back(db, first, charge=True)
    claimed(db, job_id, worker_id="w2")
    newest, oldest = app.get(f"/v1/jobs/{job_id}/attempts").json()["items"]
    assert (oldest["attempt"], oldest["worker_id"], oldest["from_step"], oldest["to_step"]) == (1, "w1", 0, 3)
    assert (oldest["outcome"], oldest["charged"], oldest["error"]["code"]) == ("requeued", True, ERROR.code)
    assert oldest["end_time"] >= oldest["start_time"]
    assert (newest["worker_id"], newest["outcome"], newest["end_time"], newest["to_step"]) == ("w2", None, None, 0)


def test_attempts_come_in_pages(sqlite_app: App):
    db = sqlite_app.context.db
    job_id = submitted(db, LOCAL)
    for _ in range(5):
        give_back(db, claimed(db, job_id))
    seen, token = [], None
    while True:
        params = {"page_size": 2, **({"page_token": token} if token else {})}
        page = sqlite_app.get(f"/v1/jobs/{job_id}/attempts", params=params).json()
        seen += [attempt["attempt"] for attempt in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == [5, 4, 3, 2, 1]
    for wrong in ("page_token=x", "page_token=a", "page_size=0", "page=1"):
        problem(sqlite_app.get(f"/v1/jobs/{job_id}/attempts?{wrong}"), 400, "invalid_argument")


WELL = {
    "objective/kl": 3.0,
    "ppo/policy/entropy": 2.0,
    "env/reward_std": 0.5,
    "tokens/responses_len_mean": 20.0,
    "ppo/loss/value": 0.2,
}


def test_health_names_what_is_wrong_and_what_to_do(app: App):
    db = app.context.db
    job_id = submitted(db, LOCAL, ppo__steps=20)
    path = f"/v1/jobs/{job_id}"
    assert app.get(f"{path}/health").json() == {"job_id": job_id, "step": None, "status": None, "findings": []}
    held = claimed(db, job_id)
    for number in range(1, 7):
        lifecycle.record_step(db, held.lease, StepDone(step=number, scalars=WELL))
    well = app.get(f"{path}/health").json()
    assert (well["status"], well["step"], well["findings"], app.get(path).json()["health"]) == ("ok", 6, [], "ok")
    ill = {**WELL, "objective/kl": 40.0, "tokens/responses_len_mean": 50.0, "ppo/loss/value": 3.0}
    lifecycle.record_step(db, held.lease, StepDone(step=7, scalars=ill))
    found = app.get(f"{path}/health").json()
    assert (found["status"], app.get(path).json()["health"]) == ("critical", "critical")
    by_name = {finding["name"]: finding for finding in found["findings"]}
    assert list(by_name) == ["kl_runaway", "value_loss_spike", "length_growing"]
    assert (by_name["kl_runaway"]["value"], by_name["kl_runaway"]["usual"]) == (40.0, None)
    assert (by_name["length_growing"]["value"], by_name["length_growing"]["usual"]) == (50.0, 20.0)
    assert all(finding["advice"] and finding["rule"] and finding["source"] for finding in found["findings"])


# --- retry and fork -----------------------------------------------------------------------------------------------


def test_a_retry_is_made_once(sqlite_app: App):
    path = f"/v1/jobs/{submitted(sqlite_app.context.db, LOCAL)}"
    problem(sqlite_app.post(f"{path}/retry"), 409, "illegal_transition")
    sqlite_app.post(f"{path}/cancel")
    first, again = sqlite_app.post(f"{path}/retry"), sqlite_app.post(f"{path}/retry")
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    assert first.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json()["parent"] == {"job_id": path.rpartition("/")[2], "step": None, "carried": []}


def test_a_fork_is_refused_with_every_reason(sqlite_app: App):
    db = sqlite_app.context.db
    job_id = submitted(db, LOCAL)
    held = claimed(db, job_id)
    record_steps(db, held, 1, 2)
    lifecycle.record_checkpoint(db, held.lease, checkpoint(2))
    path = f"/v1/jobs/{job_id}/fork"
    made = sqlite_app.post(path, json={"overrides": {"seed": 3}, "name": "again"})
    assert (made.status_code, made.json()["name"], made.json()["spec"]["seed"]) == (201, "again", 3)
    refused = problem(sqlite_app.post(path, json={"from_step": 1}), 404, "not_found")
    assert refused["detail"].endswith("of step 1; it keeps 2")
    for body, place in (({"from": 2}, "/from"), ({"from_step": "first"}, "/from_step"), ({"name": ""}, "/name")):
        refused = problem(sqlite_app.post(path, json=body), 400, "invalid_argument")
        assert any(found.startswith(place) for found in pointers(refused)), refused
    overrides = {"model": {"policy": {"hub": "org/other"}}, "ppo": {"steps": 1}}
    refused = problem(sqlite_app.post(path, json={"overrides": overrides}), 422, "invalid_spec")
    assert pointers(refused) == {"/model/policy": "not_forkable", "/ppo/steps": "out_of_range"}
    problem(sqlite_app.post(f"/v1/jobs/{submitted(db, Principal('bob'))}/fork", json={}), 404, "not_found")
