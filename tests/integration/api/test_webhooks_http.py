"""Webhooks over HTTP: made, changed, listed, removed; who may see them; what their secrets become."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from jobs.auth import Principal, create_key
from jobs.dispatch import Result, record_result
from jobs.webhook_signing import secret_of
from tests.support.attempts import submitted
from tests.support.http_api import PEPPER, App
from tests.support.problem_json import pointers, problem
from tests.support.receivers import PATIENCE, claim
from tests.support.specs import spec_document

URL = "https://hooks.example.com/ppo"


def made(app: App, **values: Any) -> dict[str, Any]:
    """A new endpoint."""
    answer = app.post("/v1/webhooks", json={"url": URL, **values})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_secret_is_shown_once_and_stored_nowhere(app: App):
    webhook = made(app, description="for ops")
    secret = webhook.pop("secret")
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    found = app.get(f"/v1/webhooks/{webhook['id']}")
    assert found.json() == webhook
    assert webhook["event_types"] == ["job.succeeded", "job.failed", "job.cancelled", "job.paused"]
    assert app.get("/v1/webhooks").json() == {"items": [webhook], "next_page_token": None}
    with app.context.db.read() as session:
        row = session.connection().exec_driver_sql("SELECT * FROM webhooks").mappings().one()
    assert secret_of(row["salt"], PEPPER) == secret
    assert not any(secret.removeprefix("whsec_") in str(value) for value in row.values())


def test_a_retried_creation_makes_no_second_endpoint(sqlite_app: App):
    made(sqlite_app)
    problem(sqlite_app.post("/v1/webhooks", json={"url": URL}), 409, "already_exists")
    assert len(sqlite_app.get("/v1/webhooks").json()["items"]) == 1


@pytest.mark.parametrize(
    ("document", "pointer", "code"),
    [
        ({}, "/url", "required"),
        ({"url": "ftp://example.com"}, "/url", "bad_format"),
        ({"url": "https://user:password@example.com/"}, "/url", "bad_format"),
        ({"url": "https://example.com:0/"}, "/url", "invalid"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "/url", "host_not_allowed"),
        ({"url": "http://localhost:9000/"}, "/url", "host_not_allowed"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "/url", "host_not_allowed"),
        ({"url": URL, "event_types": ["job.succeded"]}, "/event_types/0", "unknown_value"),
        ({"url": URL, "event_types": []}, "/event_types", "too_short"),
        ({"url": URL, "secret": "whsec_x"}, "/secret", "unknown_field"),
    ],
)
def test_a_bad_description_is_refused_with_its_place(refusing: App, document: dict[str, Any], pointer: str, code: str):
    refused = problem(refusing.post("/v1/webhooks", json=document), 422, "invalid_request")
    assert pointers(refused) == {pointer: code}


def test_a_misspelt_type_is_answered_with_the_right_one(refusing: App):
    answer = refusing.post("/v1/webhooks", json={"url": URL, "event_types": ["job.succeded"]})
    assert answer.json()["errors"][0]["suggestion"] == "job.succeeded"


def test_changes_leave_the_rest_as_it_was(app: App):
    webhook = made(app, description="before")
    path = f"/v1/webhooks/{webhook['id']}"
    changed = app.request("PATCH", path, json={"event_types": ["*"], "enabled": False}).json()
    expected = {**webhook, "event_types": ["*"], "enabled": False, "update_time": changed["update_time"]}
    assert {**changed, "secret": webhook["secret"]} == expected
    assert app.get(path).json() == changed
    problem(app.request("PATCH", path, json={"url": "http://10.0.0.1/"}), 422, "invalid_request")
    made(app, url=f"{URL}/2")
    problem(app.request("PATCH", path, json={"url": f"{URL}/2"}), 409, "already_exists")


def test_removing_takes_the_messages_along(app: App):
    webhook = made(app, event_types=["*"])
    app.post("/v1/jobs", json=spec_document())
    (message,) = claim(app.context.db)
    assert app.request("DELETE", f"/v1/webhooks/{webhook['id']}").status_code == 204
    assert not record_result(app.context.db, message, Result(200, None, 0.1), PATIENCE, jitter=1)
    assert claim(app.context.db, hold_seconds=0) == []
    problem(app.get(f"/v1/webhooks/{webhook['id']}"), 404, "webhook_not_found")


def test_pages_are_gone_through_by_their_tokens(sqlite_app: App):
    ids = [made(sqlite_app, url=f"{URL}/{number}")["id"] for number in range(5)]
    seen, token = [], None
    while True:
        page = sqlite_app.get(
            "/v1/webhooks", params={"page_size": 2, **({"page_token": token} if token else {})}
        ).json()
        seen += [item["id"] for item in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == ids[::-1]
    problem(sqlite_app.get("/v1/webhooks?page_token=x"), 400, "invalid_argument")


def test_an_owner_has_so_many_and_no_more(sqlite_app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobs.webhooks.MAX_WEBHOOKS", 2)
    for number in range(2):
        made(sqlite_app, url=f"{URL}/{number}")
    problem(sqlite_app.post("/v1/webhooks", json={"url": URL}), 409, "limit_reached")
    document = spec_document(notify=[{"url": f"{URL}/0"}, {"url": f"{URL}/9"}])
    refused = problem(sqlite_app.post("/v1/jobs", json=document), 422, "invalid_spec")
    assert pointers(refused) == {"/notify/1/url": "too_many"}
    assert sqlite_app.get("/v1/jobs").json()["items"] == []


def test_another_owner_finds_nothing_here(app: App):
    ann, bob = (create_key(app.context.db, owner, PEPPER) for owner in ("ann", "bob"))
    mine, theirs = ({"headers": {"Authorization": f"Bearer {key}"}} for key in (ann, bob))
    webhook = app.post("/v1/webhooks", json={"url": URL}, **mine).json()
    path = f"/v1/webhooks/{webhook['id']}"
    message = app.post(f"{path}/test", **mine).json()["message_id"]
    (due,) = claim(app.context.db)
    record_result(app.context.db, due, Result(500, "no", 0.1), PATIENCE, jitter=1)
    (delivery,) = app.get(f"{path}/deliveries", **mine).json()["items"]
    assert delivery["message_id"] == message
    for method, rest in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/test"),
        ("POST", "/rotate-secret"),
        ("GET", "/deliveries"),
        ("POST", f"/deliveries/{delivery['id']}/redeliver"),
    ]:
        body = {"json": {}} if method == "PATCH" else {}
        problem(app.request(method, path + rest, **body, **theirs), 404, "webhook_not_found")
    assert app.get("/v1/webhooks", **theirs).json()["items"] == []
    spec = spec_document(notify=[{"webhook": webhook["id"]}])
    refused = problem(app.post("/v1/jobs", json=spec, **theirs), 422, "invalid_spec")
    assert pointers(refused) == {"/notify/0/webhook": "unknown_webhook"}
    # An endpoint of bob's at the same address is another one, and hears of ann's jobs nothing.
    app.post("/v1/webhooks", json={"url": URL, "event_types": ["*"]}, **theirs)
    submitted(app.context.db, Principal("ann"))
    assert claim(app.context.db) == []


@pytest.mark.parametrize("webhook_id", ["wh_1", "%00", "job_" + "0" * 26, "a" * 300])
def test_what_cannot_be_an_id_is_not_found(refusing: App, webhook_id: str):
    problem(refusing.get(f"/v1/webhooks/{webhook_id}"), 404, "webhook_not_found")


def test_a_disabled_endpoint_is_sent_nothing(sqlite_app: App):
    webhook = made(sqlite_app, event_types=["*"])
    path = f"/v1/webhooks/{webhook['id']}"
    submitted(sqlite_app.context.db, Principal("local"))
    sqlite_app.request("PATCH", path, json={"enabled": False})
    submitted(sqlite_app.context.db, Principal("local"))
    assert claim(sqlite_app.context.db) == []
    problem(sqlite_app.post(f"{path}/test"), 400, "invalid_argument")
    sqlite_app.request("PATCH", path, json={"enabled": True})
    assert claim(sqlite_app.context.db) == []
    submitted(sqlite_app.context.db, Principal("local"))
    assert len(claim(sqlite_app.context.db)) == 1


def test_changes_are_in_the_audit_log_and_secrets_are_not(sqlite_app: App):
    webhook = made(sqlite_app)
    path = f"/v1/webhooks/{webhook['id']}"
    sqlite_app.request("PATCH", path, json={"url": f"{URL}/a-secret-path"})
    fresh = sqlite_app.post(f"{path}/rotate-secret").json()["secret"]
    sqlite_app.post(f"{path}/test")
    sqlite_app.request("DELETE", path)
    problem(sqlite_app.request("DELETE", path), 404, "webhook_not_found")
    log = sqlite_app.get("/v1/audit", params={"target": webhook["id"]})
    wanted = ["delete", "delete", "test", "rotate_secret", "update", "create"]
    assert [entry["action"] for entry in log.json()["items"]] == [f"webhook.{name}" for name in wanted]
    assert not any(text in log.text for text in (webhook["secret"], fresh, "a-secret-path"))


def test_a_message_tells_the_job_as_it_is_now(app: App):
    made(app, event_types=["job.cancelled"])
    job_id = app.post("/v1/jobs", json=spec_document(labels={"team": "a"})).json()["id"]
    changed = app.request("PATCH", f"/v1/jobs/{job_id}", json={"labels": {"team": "b"}})
    assert changed.json()["labels"] == {"team": "b"}, changed.text
    app.post(f"/v1/jobs/{job_id}/cancel")
    (message,) = claim(app.context.db)
    assert message.data["job"]["labels"] == {"team": "b"}
    assert (message.data["job"]["state"], message.data["event"]["type"]) == ("cancelled", "cancelled")
