"""Who changed what, and who was kept from it; and how often one may ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs import audit
from jobs.access_tables import AuditEntry
from jobs.auth import LOCAL, Principal, create_key, list_keys
from jobs.clock import db_time
from jobs.db import Database
from jobs.principal import Scope
from tests.support.attempts import submitted
from tests.support.databases import copy_sqlite
from tests.support.http_api import PEPPER, App, app_on, settings
from tests.support.problem_json import problem
from tests.support.specs import spec_document

Headers = dict[str, str]


def bearer(app: App, owner: str, *scopes: Scope) -> Headers:
    return {"Authorization": f"Bearer {create_key(app.context.db, owner, PEPPER, scopes=scopes)}"}


def entries(app: App, query: str = "", headers: Headers | None = None) -> list[dict[str, Any]]:
    """The log, oldest first, without what made the test's own keys."""
    items = app.get(f"/v1/audit{query}", headers=headers).json()["items"]
    return [item for item in items[::-1] if item["owner"] != "operator"]


def test_every_change_says_who_did_what_from_where(app: App):
    ann, admin = bearer(app, "ann", Scope.SUBMIT, Scope.CONTROL), bearer(app, "root", Scope.ADMIN)
    job = app.post("/v1/jobs", json=spec_document(), headers={**ann, "X-Request-Id": "r-1"}).json()
    for _ in range(2):  # the second changes nothing
        app.post(f"/v1/jobs/{job['id']}/cancel", headers=ann)
    app.request("PUT", "/v1/quotas/ann", json={"max_queued_jobs": 5}, headers=admin)
    made = app.post("/v1/keys", json={"owner": "bob", "name": "n"}, headers=admin).json()
    app.request("DELETE", f"/v1/keys/{made['id']}", headers=admin)
    found = entries(app, headers=admin)
    assert [(item["owner"], item["action"], item["target"], item["outcome"]) for item in found] == [
        ("ann", "job.submit", job["id"], "done"),
        ("ann", "job.cancel", job["id"], "done"),
        ("root", "quota.set", "ann", "done"),
        ("root", "key.create", made["id"], "done"),
        ("root", "key.revoke", made["id"], "done"),
    ]
    keys = {view.owner: view.id for view in list_keys(app.context.db)}
    assert found[0]["key_id"] == keys["ann"]
    assert (found[0]["request_id"], found[0]["address"]) == ("r-1", "127.0.0.1")
    unset = dict.fromkeys(("max_running_jobs", "max_datasets", "max_stored_bytes"))
    assert found[2]["detail"] == {**unset, "max_queued_jobs": 5}
    assert found[3]["detail"]["owner"] == "bob"


def test_refusals_are_in_it_where_they_are_about_access(sqlite_app: App):
    app = sqlite_app
    ann, admin = bearer(app, "ann", Scope.CONTROL), bearer(app, "root", Scope.ADMIN)
    theirs = submitted(app.context.db, Principal("bob"))
    problem(app.post(f"/v1/jobs/{theirs}/cancel", headers=ann), 404, "not_found")
    problem(app.post("/v1/jobs", json=spec_document(), headers=ann), 403, "forbidden")
    app.request("PUT", "/v1/quotas/root", json={"max_queued_jobs": 0}, headers=admin)
    problem(app.post("/v1/jobs", json=spec_document(), headers=admin), 429, "quota_exceeded")
    problem(app.get("/v1/jobs", headers=ann), 403, "forbidden")  # a read is no change
    problem(app.post("/v1/jobs", json={}, headers=admin), 422, "invalid_spec")  # and this no question of access
    found = [(item["action"], item["target"], item["outcome"]) for item in entries(app, headers=admin)]
    assert found[1:] == [
        ("job.cancel", theirs, "not_found"),
        ("job.submit", None, "forbidden"),
        ("quota.set", "root", "done"),
        ("job.submit", None, "quota_exceeded"),
    ]


def test_a_change_that_is_undone_has_no_entry(sqlite_app: App):
    def change() -> None:
        with sqlite_app.context.db.transaction() as session:
            audit.record(session, LOCAL, "job.cancel", "job_1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert entries(sqlite_app) == []


def test_it_comes_in_pages_by_owner_and_by_target(app: App):
    job_ids = [app.post("/v1/jobs", json=spec_document()).json()["id"] for _ in range(4)]
    app.post(f"/v1/jobs/{job_ids[0]}/cancel")
    first = app.get("/v1/audit?page_size=3").json()
    second = app.get(f"/v1/audit?page_size=3&page_token={first['next_page_token']}").json()
    targets = [item["target"] for item in first["items"] + second["items"]]
    assert targets == [job_ids[0], *job_ids[::-1]]
    assert second["next_page_token"] is None
    assert [item["action"] for item in entries(app, f"?target={job_ids[0]}")] == ["job.submit", "job.cancel"]
    assert entries(app, "?owner=nobody") == []
    assert len(entries(app, "?owner=local")) == 5


def test_old_entries_are_forgotten(database: Database):
    with database.transaction() as session:
        for _ in range(5):
            audit.record(session, LOCAL, "job.cancel", "job_1")
        session.execute(sa.update(AuditEntry).values(time=db_time(-40 * 86400)))
        audit.record(session, LOCAL, "job.cancel", "job_2")
    assert audit.prune(database, days=41) == 0
    assert audit.prune(database, days=39) == 5
    assert [entry.target for entry in audit.entries(database).items] == ["job_2"]


@pytest.fixture
def hurried(sqlite_template_file: Path, tmp_path: Path) -> Iterator[App]:
    """An app that takes three requests of an owner at once and hardly more."""
    url = copy_sqlite(sqlite_template_file, tmp_path)
    db = Database(url)
    given = settings(tmp_path, url, rate_limit_per_second=0.01, rate_limit_burst=3)
    with app_on(db, given) as running:
        yield running
    db.dispose()


def test_an_owner_who_asks_too_often_is_told_how_long_to_wait(hurried: App):
    ann, other, bob = (bearer(hurried, owner, Scope.READ) for owner in ("ann", "ann", "bob"))
    answers = [hurried.get("/v1/jobs", headers=ann) for _ in range(3)]
    assert [answer.headers["ratelimit"].partition(";t=")[0] for answer in answers] == [
        '"owner";r=2',
        '"owner";r=1',
        '"owner";r=0',
    ]
    assert answers[0].headers["ratelimit-policy"] == '"owner";q=3;w=300'
    for headers in (ann, other):
        refused = hurried.get("/v1/jobs", headers=headers)
        problem(refused, 429, "rate_limited")
        assert 90 <= int(refused.headers["retry-after"]) <= 100
        assert refused.headers["ratelimit"].startswith('"owner";r=0;t=')
    assert hurried.get("/v1/jobs", headers=bob).status_code == 200
    for path in ("/livez", "/readyz", "/metrics", "/problems"):
        for _ in range(5):
            answer = hurried.get(path, headers=ann)
            assert answer.status_code == 200
            assert "ratelimit" not in answer.headers


def test_without_keys_nobody_is_counted(hurried: App):
    assert [hurried.get("/v1/jobs").status_code for _ in range(6)] == [200] * 6
