"""Who may enter, shown on every route that the app itself declares."""

from __future__ import annotations

import pytest

from jobs.auth import Principal, create_key, list_keys, revoke_key
from tests.support.attempts import submitted
from tests.support.http_api import PEPPER, App
from tests.support.problem_json import problem
from tests.support.servers import wait_until
from tests.support.specs import spec_document

OPEN = {"/livez", "/readyz", "/metrics", "/metrics/jobs", "/sd/workers", "/problems", "/problems/{code}"}

NAMES = {
    "job_id": "job_0",
    "step": 1,
    "code": "internal",
    "key_id": "key_0",
    "dataset_id": "ds_0",
    "errand_id": "errand_0",
    "webhook_id": "wh_0",
    "delivery_id": "whd_0",
    "owner": "bob",
}


def operations(app: App) -> list[tuple[str, str]]:
    """Method and path template of every operation, from the document that clients get."""
    paths = app.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, item in paths.items() for method in item]


def body(method: str) -> dict[str, object]:
    return {"POST": {"json": spec_document()}, "PATCH": {"json": {"name": "mine"}}}.get(method, {})


@pytest.fixture
def ann(app: App) -> dict[str, str]:
    """Headers with the key of an owner; from now on the app needs keys."""
    return {"Authorization": f"Bearer {create_key(app.context.db, 'ann', PEPPER)}"}


def test_without_keys_this_machine_is_the_local_owner(app: App):
    assert app.post("/v1/jobs", json=spec_document()).status_code == 201


def test_once_a_key_exists_every_route_of_v1_needs_one(app: App, ann: dict[str, str]):
    found = operations(app)
    assert {path for _, path in found if not path.startswith("/v1/")} == OPEN
    for method, path in found:
        response = app.request(method, path.format_map(NAMES), **body(method))
        if path in OPEN:
            assert response.status_code == 200
        else:
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == 'Bearer realm="ppo"'


def test_another_owners_job_does_not_exist_on_any_route(app: App, ann: dict[str, str]):
    job_id = submitted(app.context.db, Principal("bob"))
    routes = [(method, path) for method, path in operations(app) if "{job_id}" in path]
    assert len(routes) >= 8
    for method, path in routes:
        where = path.format_map({**NAMES, "job_id": job_id})
        sent = {"json": {}} if path.endswith("/fork") else body(method)
        theirs = problem(app.request(method, where, headers=ann, **sent), 404, "not_found")
        nobodys = app.request(method, where.replace(job_id, "job_" + "0" * 26), headers=ann, **sent).json()
        assert {**theirs, "request_id": ""} == {**nobodys, "request_id": ""}
    stream = {**ann, "Accept": "text/event-stream"}
    problem(app.get(f"/v1/jobs/{job_id}/events", headers=stream), 404, "not_found")


def test_owners_see_their_own_jobs_only(app: App, ann: dict[str, str]):
    bob = {"Authorization": f"bearer {create_key(app.context.db, 'bob', PEPPER)}"}
    mine = app.post("/v1/jobs", json=spec_document(), headers={**ann, "Idempotency-Key": "k"})
    theirs = app.post("/v1/jobs", json=spec_document(), headers={**bob, "Idempotency-Key": "k"})
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert [job["id"] for job in app.get("/v1/jobs", headers=ann).json()["items"]] == [mine.json()["id"]]
    assert app.get(mine.headers["location"], headers=ann).status_code == 200


def test_other_authorizations_are_refused(app: App, ann: dict[str, str]):
    key = ann["Authorization"].removeprefix("Bearer ")
    for value in ("", "Bearer", "Bearer ", f"Basic {key}", key, f"Bearer {key}x", f"Bearer {'ppo_' + 'a' * 43}"):
        document = problem(app.get("/v1/jobs", headers={"Authorization": value}), 401, "unauthenticated")
        assert key not in str(document)


def test_a_wrong_key_is_refused_even_where_none_is_needed(sqlite_app: App):
    response = sqlite_app.get("/v1/jobs", headers={"Authorization": "Bearer ppo_wrong"})
    problem(response, 401, "unauthenticated")


def test_a_revoked_key_stops_working_and_does_not_open_the_door(app: App, ann: dict[str, str]):
    assert app.get("/v1/jobs", headers=ann).status_code == 200
    (key,) = list_keys(app.context.db)
    revoke_key(app.context.db, key.id)
    wait_until(lambda: app.get("/v1/jobs", headers=ann).status_code == 401, 60, lambda: "it is still taken")
    problem(app.get("/v1/jobs", headers=ann), 401, "unauthenticated")
    problem(app.get("/v1/jobs"), 401, "unauthenticated")


def test_a_web_page_with_a_name_of_its_own_is_not_the_local_owner(sqlite_app: App):
    problem(sqlite_app.get("/v1/jobs", headers={"Host": "rebound.example.org"}), 403, "host_not_allowed")
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert sqlite_app.get("/v1/jobs", headers={"Host": host}).status_code == 200


def test_with_a_key_any_name_will_do(app: App, ann: dict[str, str]):
    assert app.get("/v1/jobs", headers={**ann, "Host": "ppo.example.org"}).status_code == 200
