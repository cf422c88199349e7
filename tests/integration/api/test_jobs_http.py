"""Look up, list and cancel over HTTP."""

from __future__ import annotations

import pytest

from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.attempts import claimed, record_steps, submitted
from tests.support.http_api import App
from tests.support.problem_json import pointers, problem


def test_an_unchanged_job_costs_no_body(app: App):
    path = f"/v1/jobs/{submitted(app.context.db, LOCAL)}"
    etag = app.get(path).headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        response = app.get(path, headers={"If-None-Match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == etag
    assert app.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_changed_job_has_another_etag(app: App):
    job_id = submitted(app.context.db, LOCAL)
    before = app.get(f"/v1/jobs/{job_id}").headers["etag"]
    record_steps(app.context.db, claimed(app.context.db, job_id), 1, 1)
    after = app.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": before})
    assert after.status_code == 200
    assert after.json()["progress"]["step"] == 1


def test_a_poller_is_told_when_to_look_again_until_the_end(app: App):
    job_id = submitted(app.context.db, LOCAL)
    held = claimed(app.context.db, job_id)
    assert app.get(f"/v1/jobs/{job_id}").headers["retry-after"] == "2"
    record_steps(app.context.db, held, 1, 1)
    # Four steps of 2 s are left: a twentieth of that is less than the least wait.
    assert app.get(f"/v1/jobs/{job_id}").headers["retry-after"] == "1"
    lifecycle.succeed(app.context.db, held.lease)
    done = app.get(f"/v1/jobs/{job_id}")
    assert done.json()["done"]
    assert "retry-after" not in done.headers


def test_pages_hold_every_job_once_newest_first(app: App):
    ids = [submitted(app.context.db, LOCAL, name=f"job {n}") for n in range(7)]
    seen, token = [], None
    while True:
        params = {"page_size": 3, **({"page_token": token} if token else {})}
        page = app.get("/v1/jobs", params=params).json()
        seen += [job["id"] for job in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == ids[::-1]


def test_filters_are_applied_before_the_cut(app: App):
    db = app.context.db
    wanted = submitted(db, LOCAL, labels={"team": "a=b", "env": "test"})
    submitted(db, LOCAL, labels={"team": "other", "env": "test"})
    cancelled = submitted(db, LOCAL)
    app.post(f"/v1/jobs/{cancelled}/cancel")

    def ids(**params: object) -> list[str]:
        return [job["id"] for job in app.get("/v1/jobs", params=params).json()["items"]]

    assert ids(label=["team=a=b", "env=test"], page_size=1) == [wanted]
    assert ids(state="cancelled") == [cancelled]
    assert len(ids(state=["queued", "cancelled"])) == 3
    assert ids(label="env=test", state="running") == []


@pytest.mark.parametrize(
    ("query", "place", "code"),
    [
        ("page_size=0", "/page_size", "out_of_range"),
        ("page_size=-1", "/page_size", "out_of_range"),
        ("page_size=many", "/page_size", "wrong_type"),
        ("state=finished", "/state/0", "unknown_value"),
        ("label=team", "/label", "bad_format"),
        ("label=%3Dx", "/label", "bad_format"),
        ("label=a%3D%00", "/label", "bad_format"),
        ("sate=queued", "/sate", "unknown_parameter"),
    ],
)
def test_an_unusable_filter_is_refused(refusing: App, query: str, place: str, code: str):
    document = problem(refusing.get(f"/v1/jobs?{query}"), 400, "invalid_argument")
    assert pointers(document) == {place: code}


def test_a_misspelt_filter_is_told_the_nearest_name(refusing: App):
    (found,) = problem(refusing.get("/v1/jobs?sate=queued"), 400, "invalid_argument")["errors"]
    assert found["suggestion"] == "state"
    assert found["allowed"] == ["state", "label", "page_size", "page_token"]


def test_a_misspelt_value_is_told_the_nearest_one(refusing: App):
    (found,) = problem(refusing.get("/v1/jobs?state=runing"), 400, "invalid_argument")["errors"]
    assert (found["suggestion"], found["allowed"]) == ("running", [state.value for state in JobState])


@pytest.mark.parametrize("token", ["x", "AAAA", "%00", "é", "a" * 5000])
def test_a_page_token_of_somebody_else_is_refused(refusing: App, token: str):
    problem(refusing.get(f"/v1/jobs?page_token={token}"), 400, "invalid_argument")


def test_an_id_that_names_nothing_is_not_found(app: App):
    for job_id in ("job_00000000000000000000000000", "nonsense", "%00", "job_%00", "a" * 3000):
        problem(app.get(f"/v1/jobs/{job_id}"), 404, "not_found")
        problem(app.post(f"/v1/jobs/{job_id}/cancel"), 404, "not_found")
        problem(app.post(f"/v1/jobs/{job_id}/resume"), 404, "not_found")


def test_what_no_database_stores_is_refused_before_it(app: App):
    for query in ("label=a%3D%00", "label=%00%3Da", "page_token=%00", "state=%00"):
        problem(app.get(f"/v1/jobs?{query}"), 400, "invalid_argument")


def test_a_queued_job_is_cancelled_at_once_and_asking_again_is_fine(app: App):
    job_id = submitted(app.context.db, LOCAL)
    first, again = app.post(f"/v1/jobs/{job_id}/cancel"), app.post(f"/v1/jobs/{job_id}/cancel")
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    assert (first.json()["state"], first.json()["allowed_actions"]) == ("cancelled", ["retry"])


def test_a_running_job_is_asked_to_stop(app: App):
    job_id = submitted(app.context.db, LOCAL)
    held = claimed(app.context.db, job_id)
    response = app.post(f"/v1/jobs/{job_id}/cancel")
    assert (response.json()["state"], response.status_code) == ("running", 200)
    assert response.json()["cancel_request_time"]
    assert lifecycle.heartbeat(app.context.db, held.lease, lease_seconds=60).cancel


def test_a_finished_job_cannot_be_cancelled(app: App):
    job_id = submitted(app.context.db, LOCAL)
    lifecycle.succeed(app.context.db, claimed(app.context.db, job_id).lease)
    document = problem(app.post(f"/v1/jobs/{job_id}/cancel"), 409, "illegal_transition")
    assert (document["state"], document["allowed_actions"]) == ("succeeded", [])


def test_a_paused_job_is_resumed_and_asking_again_is_fine(app: App):
    db = app.context.db
    job_id = submitted(db, LOCAL)
    held = claimed(db, job_id)
    lifecycle.pause(db, held.lease, stop_reason="guard", message="paused at step 0: a guard")
    paused = app.get(f"/v1/jobs/{job_id}").json()
    assert (paused["state"], paused["stop_reason"]) == ("paused", "guard")
    assert paused["allowed_actions"] == ["cancel", "resume"]
    first, again = app.post(f"/v1/jobs/{job_id}/resume"), app.post(f"/v1/jobs/{job_id}/resume")
    assert (first.status_code, again.status_code) == (200, 200)
    assert (again.json()["state"], again.json()["stop_reason"]) == ("queued", None)
    assert first.headers["etag"] == f'"{first.json()["etag"]}"'
    app.post(f"/v1/jobs/{job_id}/cancel")
    document = problem(app.post(f"/v1/jobs/{job_id}/resume"), 409, "illegal_transition")
    assert document["allowed_actions"] == ["retry"]
