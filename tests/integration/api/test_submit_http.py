"""POST /v1/jobs: what is accepted, and every way to be refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.http_api import App
from tests.support.problem_json import pointers, problem
from tests.support.specs import spec_document

JSON = {"Content-Type": "application/json"}


def test_a_job_is_created_where_it_says(app: App):
    response = app.post("/v1/jobs", json=spec_document(labels={"team": "demo"}))
    assert response.status_code == 201
    job = response.json()
    assert (job["state"], job["done"], job["progress"]["steps_total"]) == ("queued", False, 5)
    assert job["queue"]["position"] == 1
    assert response.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    again = app.get(response.headers["location"])
    assert again.json() == job
    assert again.headers["etag"] == response.headers["etag"] == f'"{job["etag"]}"'


def test_a_repeated_key_answers_with_the_first_job(app: App):
    first = app.post("/v1/jobs", json=spec_document(), headers={"Idempotency-Key": "k-1"})
    again = app.post("/v1/jobs", json=spec_document(seed=0), headers={"Idempotency-Key": '"k-1"'})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(app.get("/v1/jobs").json()["items"]) == 1


def test_a_key_cannot_be_used_for_another_spec(app: App):
    app.post("/v1/jobs", json=spec_document(), headers={"Idempotency-Key": "k-1"})
    response = app.post("/v1/jobs", json=spec_document(seed=1), headers={"Idempotency-Key": "k-1"})
    problem(response, 422, "idempotency_conflict")


def test_twins_with_one_key_make_one_job(app: App):
    def submit(_: int) -> tuple[int, str]:
        response = app.post("/v1/jobs", json=spec_document(), headers={"Idempotency-Key": "twins"})
        return response.status_code, response.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(16)))
    assert len({job_id for _, job_id in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 15 + [201]


@pytest.mark.parametrize("key", ["", "a b", "x" * 129])
def test_an_unusable_key_is_refused(refusing: App, key: str):
    response = refusing.post("/v1/jobs", json=spec_document(), headers={"Idempotency-Key": key})
    problem(response, 400, "invalid_argument")


def test_every_problem_of_a_spec_is_reported_at_once(refusing: App):
    spec = spec_document(nmae="x", ppo__steps=-1, ppo__batch_size="many", kl={"penalty": "kll"}, rewards=[])
    document = problem(refusing.post("/v1/jobs", json=spec), 422, "invalid_spec")
    assert pointers(document) == {
        "/nmae": "unknown_field",
        "/ppo/steps": "out_of_range",
        "/ppo/batch_size": "wrong_type",
        "/kl/penalty": "unknown_value",
        "/rewards": "too_short",
    }
    by_place = {item["pointer"]: item for item in document["errors"]}
    assert by_place["/nmae"]["suggestion"] == "name"
    assert by_place["/kl/penalty"]["allowed"] == ["kl", "abs", "mse", "full", "k3"]
    assert by_place["/ppo/steps"]["given"] == -1


@pytest.mark.parametrize(
    ("changes", "place", "code"),
    [
        ({"pp0": {}}, "/pp0", "unknown_field"),
        ({"ppo__stepz": 1}, "/ppo/stepz", "unknown_field"),
        ({"name": 7}, "/name", "wrong_type"),
        ({"prompts": "Once"}, "/prompts", "wrong_type"),
        ({"prompts": {"inline": []}}, "/prompts/inline", "too_short"),
        ({"ppo__steps": 10**30}, "/ppo/steps", "out_of_range"),
        ({"ppo__batch_size": 0}, "/ppo/batch_size", "out_of_range"),
        ({"ppo__minibatch_size": 100}, "/ppo/minibatch_size", "minibatch_too_large"),
        ({"generation": {"max_new_tokens": 10**9}}, "/generation/max_new_tokens", "out_of_range"),
        ({"model": {"policy": {"path": "nowhere"}}}, "/model/policy/path", "source_unusable"),
        ({"model": {"policy": {"path": "../../etc"}}}, "/model/policy/path", "source_unusable"),
        ({"model": {"policy": {"path": "tiny", "hub": "a/b"}}}, "/model/policy", "invalid"),
        ({"rewards": [{"name": "r", "rule": {"name": "sentimant"}}]}, "/rewards/0/rule/name", "unknown_rule"),
        ({"labels": {"bad key": "x"}}, "/labels/bad key", "bad_format"),
        ({"name": "nul\x00"}, "/name", "bad_character"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value)[:40],
)
def test_a_bad_spec_is_refused_where_it_is_bad(refusing: App, changes: dict[str, Any], place: str, code: str):
    document = problem(refusing.post("/v1/jobs", json=spec_document(**changes)), 422, "invalid_spec")
    assert pointers(document) == {place: code}
    assert refusing.get("/v1/jobs").json()["items"] == []


def test_an_unknown_reward_is_told_the_nearest_name(refusing: App):
    spec = spec_document(rewards=[{"name": "r", "rule": {"name": "sentimant"}}])
    (found,) = problem(refusing.post("/v1/jobs", json=spec), 422, "invalid_spec")["errors"]
    assert found["suggestion"] == "sentiment"
    assert "length" in found["allowed"]


def test_a_model_under_the_root_is_accepted(sqlite_app: App):
    spec = spec_document(model={"policy": {"path": "tiny"}})
    assert sqlite_app.post("/v1/jobs", json=spec).status_code == 201


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"a": NaN}', b'{"name": 1, "name": 2}', b"[" * 100_000]
)
def test_a_malformed_body_is_refused(refusing: App, body: bytes):
    problem(refusing.post("/v1/jobs", content=body, headers=JSON), 400, "malformed_body")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
def test_another_content_type_is_refused(refusing: App, kind: str):
    response = refusing.post("/v1/jobs", content=json.dumps(spec_document()), headers={"Content-Type": kind})
    problem(response, 415, "unsupported_media_type")


def test_parameters_of_the_content_type_do_not_matter(sqlite_app: App):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = json.dumps(spec_document())
    assert sqlite_app.post("/v1/jobs", content=body, headers=headers).status_code == 201


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
def test_a_compressed_body_is_refused(refusing: App, encoding: str):
    headers = {**JSON, "Content-Encoding": encoding}
    problem(refusing.post("/v1/jobs", content=b"{}", headers=headers), 415, "unsupported_media_type")


def test_a_body_may_be_as_large_as_the_limit_and_no_larger(sqlite_app: App):
    limit = sqlite_app.context.settings.max_body_bytes
    body = json.dumps(spec_document()).encode()
    fits = sqlite_app.post("/v1/jobs", content=body.ljust(limit), headers=JSON)
    assert fits.status_code == 201
    problem(sqlite_app.post("/v1/jobs", content=body.ljust(limit + 1), headers=JSON), 413, "body_too_large")


def test_submit_has_no_query_parameters(refusing: App):
    document = problem(refusing.post("/v1/jobs?dry_run=1", json=spec_document()), 400, "invalid_argument")
    assert pointers(document) == {"/dry_run": "unknown_parameter"}
