"""Keys, scopes, quotas and who you are, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.access import TRUSTED_SECONDS
from jobs.auth import create_key, list_keys
from jobs.db import Database
from jobs.principal import Scope
from tests.support.attempts import claimed
from tests.support.http_api import PEPPER, App
from tests.support.problem_json import pointers, problem
from tests.support.servers import wait_until
from tests.support.specs import spec_document

Headers = dict[str, str]
MakeKey = Callable[..., Headers]


@pytest.fixture
def key(sqlite_app: App) -> MakeKey:
    """Makes headers with a key of these scopes."""

    def make(*scopes: Scope, owner: str = "ann", **named: Any) -> Headers:
        made = create_key(sqlite_app.context.db, owner, PEPPER, scopes=scopes or list(Scope)[:3], **named)
        return {"Authorization": f"Bearer {made}"}

    return make


def submit(app: App, headers: Headers) -> str:
    answer = app.post("/v1/jobs", json=spec_document(), headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_key_does_what_its_scopes_say_and_no_more(sqlite_app: App, key: MakeKey):
    app, reader, submitter, controller = sqlite_app, key(Scope.READ), key(Scope.SUBMIT), key(Scope.CONTROL)
    job_id = submit(app, submitter)
    assert app.get(f"/v1/jobs/{job_id}", headers=reader).status_code == 200
    assert app.post(f"/v1/jobs/{job_id}/cancel", headers=controller).status_code == 200
    for headers, method, path, lacking in (
        (reader, "POST", "/v1/jobs", "submit"),
        (reader, "POST", f"/v1/jobs/{job_id}/cancel", "control"),
        (submitter, "GET", f"/v1/jobs/{job_id}", "read"),
        (controller, "GET", "/v1/jobs", "read"),
        (controller, "POST", "/v1/keys", "keys"),
        (controller, "GET", "/v1/audit", "admin"),
    ):
        refused = app.request(method, path, headers=headers)
        assert problem(refused, 403, "forbidden")["scope"] == lacking
        assert f'scope="{lacking}"' in refused.headers["www-authenticate"]


def test_everybody_may_ask_who_they_are(sqlite_app: App, key: MakeKey):
    headers = key(Scope.SUBMIT)
    submit(sqlite_app, headers)
    me = sqlite_app.get("/v1/me", headers=headers).json()
    assert (me["owner"], me["scopes"]) == ("ann", ["submit"])
    assert me["key_id"] == list_keys(sqlite_app.context.db)[0].id
    assert me["quota"]["queued_jobs"] == {"used": 1, "limit": 1000}
    assert me["quota"]["running_jobs"] == {"used": 0, "limit": None}
    assert me["rate_limit"] == {"requests_per_second": 100.0, "burst": 300}


def test_without_keys_this_machine_may_do_everything_and_make_the_first_key(sqlite_app: App):
    me = sqlite_app.get("/v1/me").json()
    assert (me["owner"], me["scopes"], me["key_id"]) == ("local", [scope.value for scope in Scope], None)
    made = sqlite_app.post("/v1/keys", json={"owner": "ann", "scopes": ["admin"], "name": "first"})
    assert made.status_code == 201
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    assert sqlite_app.get("/v1/me", headers=headers).json()["scopes"] == ["admin"]
    problem(sqlite_app.get("/v1/me"), 401, "unauthenticated")


def test_a_key_is_shown_once_listed_and_revoked(sqlite_app: App, key: MakeKey):
    app, headers = sqlite_app, key(Scope.KEYS, Scope.READ)
    made = app.post("/v1/keys", json={"name": "ci", "scopes": ["read"], "expire_seconds": 3600}, headers=headers)
    shown = made.json()
    assert made.headers["cache-control"] == "no-store"
    assert datetime.fromisoformat(shown["expire_time"]) - datetime.now(UTC) < timedelta(seconds=3600)
    new = {"Authorization": f"Bearer {shown['key']}"}
    assert app.get("/v1/jobs", headers=new).status_code == 200
    listing = app.get("/v1/keys", headers=headers)
    assert [(item["name"], item["scopes"]) for item in listing.json()["items"]] == [
        ("ci", ["read"]),
        ("", ["read", "keys"]),
    ]
    assert listing.json()["items"][0]["last_use_time"]
    assert shown["key"] not in listing.text
    for _ in range(2):
        revoked = app.request("DELETE", f"/v1/keys/{shown['id']}", headers=headers)
        assert revoked.json()["revoke_time"]
    gone = lambda: app.get("/v1/jobs", headers=new).status_code == 401  # noqa: E731
    wait_until(gone, TRUSTED_SECONDS + 20, lambda: "the revoked key still works")


def test_a_key_begets_no_stronger_one(sqlite_app: App, key: MakeKey):
    app, headers = sqlite_app, key(Scope.KEYS, Scope.READ, expire_seconds=600)
    for body, lacking in (
        ({"scopes": ["read", "submit"], "expire_seconds": 60}, "submit"),
        ({"scopes": ["admin"], "expire_seconds": 60}, "admin"),
        ({"scopes": ["read"], "owner": "bob", "expire_seconds": 60}, "admin"),
    ):
        assert problem(app.post("/v1/keys", json=body, headers=headers), 403, "forbidden")["scope"] == lacking
    for life in ({}, {"expire_seconds": 3600}):
        longer = problem(
            app.post("/v1/keys", json={"scopes": ["read"], **life}, headers=headers), 400, "invalid_argument"
        )
        assert pointers(longer) == {"/expire_seconds": "too_late"}
    within = app.post("/v1/keys", json={"scopes": ["read"], "expire_seconds": 60}, headers=headers)
    assert within.status_code == 201
    assert len(list_keys(app.context.db)) == 2


def test_another_owners_key_does_not_exist(sqlite_app: App, key: MakeKey):
    app, ann, admin = sqlite_app, key(Scope.KEYS), key(Scope.ADMIN, owner="root")
    key(Scope.READ, owner="bob")
    theirs = next(view.id for view in list_keys(app.context.db) if view.owner == "bob")
    refusals = [app.request("DELETE", f"/v1/keys/{key_id}", headers=ann) for key_id in (theirs, "key_0", "key_x/y")]
    documents = [problem(refused, 404, "key_not_found") for refused in refusals[:2]]
    assert {**documents[0], "request_id": ""} == {**documents[1], "request_id": ""}
    problem(app.get("/v1/keys?owner=bob", headers=ann), 403, "forbidden")
    problem(app.get("/v1/keys?everybody=true", headers=ann), 403, "forbidden")
    assert [item["owner"] for item in app.get("/v1/keys", headers=ann).json()["items"]] == ["ann"]
    assert len(app.get("/v1/keys?everybody=true", headers=admin).json()["items"]) == 3
    assert app.get("/v1/keys?owner=bob", headers=admin).json()["items"][0]["id"] == theirs
    assert app.request("DELETE", f"/v1/keys/{theirs}", headers=admin).json()["owner"] == "bob"


def test_an_expired_key_is_refused(sqlite_app: App, key: MakeKey):
    headers = key(Scope.READ, expire_seconds=1)
    assert sqlite_app.get("/v1/jobs", headers=headers).status_code == 200
    expired = lambda: sqlite_app.get("/v1/jobs", headers=headers).status_code == 401  # noqa: E731
    wait_until(expired, 60, lambda: "the expired key still works")


def test_a_key_that_cannot_be_is_refused_with_every_reason(sqlite_app: App):
    body = {"name": "a\nb", "scopes": ["reed"], "expire_seconds": 0, "color": "red", "owner": ""}
    document = problem(sqlite_app.post("/v1/keys", json=body), 400, "invalid_argument")
    assert set(pointers(document)) == {"/name", "/scopes/0", "/expire_seconds", "/color", "/owner"}
    suggestion = next(item for item in document["errors"] if item["pointer"] == "/scopes/0")
    assert suggestion["suggestion"] == "read"


def test_keys_come_in_pages(sqlite_app: App, key: MakeKey):
    headers, *_ = [key(Scope.KEYS) for _ in range(5)]
    first = sqlite_app.get("/v1/keys?page_size=3", headers=headers).json()
    second = sqlite_app.get(f"/v1/keys?page_size=3&page_token={first['next_page_token']}", headers=headers).json()
    ids = [item["id"] for item in first["items"] + second["items"]]
    assert (len(ids), second["next_page_token"]) == (5, None)
    assert ids == sorted(ids, reverse=True)
    for token in ("x", "am9iXzA", "%00"):
        problem(sqlite_app.get(f"/v1/keys?page_token={token}", headers=headers), 400, "invalid_argument")


def test_an_administrator_sets_a_quota_that_submit_obeys(sqlite_app: App, key: MakeKey):
    app, ann, admin = sqlite_app, key(), key(Scope.ADMIN, owner="root")
    quota = app.request("PUT", "/v1/quotas/ann", json={"max_queued_jobs": 2}, headers=admin).json()
    assert quota["queued_jobs"] == {"used": 0, "limit": 2}
    job_ids = [submit(app, {**ann, "Idempotency-Key": str(n)}) for n in range(2)]
    full = app.post("/v1/jobs", json=spec_document(), headers=ann)
    assert "your quota" in problem(full, 429, "quota_exceeded")["detail"]
    assert full.headers["retry-after"] == "30"
    again = app.post("/v1/jobs", json=spec_document(), headers={**ann, "Idempotency-Key": "1"})
    assert (again.status_code, again.json()["id"]) == (200, job_ids[1])
    submit(app, key(owner="bob"))
    app.post(f"/v1/jobs/{job_ids[0]}/cancel", headers=ann)
    submit(app, ann)
    assert app.get("/v1/quotas/ann", headers=admin).json()["queued_jobs"] == {"used": 2, "limit": 2}
    app.request("PUT", "/v1/quotas/ann", json={}, headers=admin)
    assert app.get("/v1/quotas/ann", headers=admin).json()["is_default"]
    problem(app.request("PUT", "/v1/quotas/ann", json={"max_queued_jobs": 9}, headers=ann), 403, "forbidden")
    problem(app.request("PUT", "/v1/quotas/ann", json={"max_queued_jobs": -1}, headers=admin), 400, "invalid_argument")


def test_running_jobs_count_in_the_quota_of_their_owner(sqlite_app: App, key: MakeKey):
    ann = key()
    submit(sqlite_app, ann)
    db: Database = sqlite_app.context.db
    claimed(db)
    quota = sqlite_app.get("/v1/me", headers=ann).json()["quota"]
    assert (quota["running_jobs"]["used"], quota["queued_jobs"]["used"]) == (1, 0)


def test_an_owner_may_have_a_slash_in_the_name(sqlite_app: App):
    answer = sqlite_app.request("PUT", "/v1/quotas/team%2Fa", json={"max_running_jobs": 1})
    assert answer.json()["owner"] == "team/a"
