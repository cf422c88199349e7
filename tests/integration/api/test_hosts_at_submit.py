"""A host that is an address which may not be called is refused when it is named, not when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub
from jobs.db import Database
from tests.support.grpc_api import message, refusal
from tests.support.http_api import App, app_on, served_on, settings
from tests.support.problem_json import pointers, problem
from tests.support.specs import spec_document

FORBIDDEN = [
    "127.0.0.1",
    "127.1",  # as C reads it
    "0x7f000001",
    "2130706433",
    "017700000001",
    "127.0.0.1.",
    "localhost",
    "LOCALHOST.",
    "metadata.localhost",
    "0.0.0.0",
    "10.1.2.3",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "168.63.129.16",
    "[::1]",
    "[::]",
    "[fe80::1]",
    "[fd00::1]",
    "[::ffff:10.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::10.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",  # NAT64
    "[64:ff9b:1::a00:1]",
    "[2002:a00:1::]",  # 6to4
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",  # Teredo
]
ALLOWED = ["hooks.example.com", "93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]", "127.0.0.1.example.org"]


def to_reward(url: str) -> dict[str, Any]:
    return {"rewards": [{"name": "server", "http": {"url": url}}]}


def to_webhook(url: str) -> dict[str, Any]:
    return {"notify": [{"url": url}]}


PLACES = [(to_reward, "/rewards/0/http/url"), (to_webhook, "/notify/0/url")]


@pytest.fixture(scope="module", params=PLACES, ids=["reward", "notify"])
def place(request: pytest.FixtureRequest) -> tuple[Callable[[str], dict[str, Any]], str]:
    """How a spec names a URL, and the pointer to it."""
    found: tuple[Callable[[str], dict[str, Any]], str] = request.param
    return found


def test_addresses_that_are_not_public_are_refused_at_submit(refusing: App, place):
    naming, pointer = place
    for host in FORBIDDEN:
        for url in (f"http://{host}/", f"https://{host}:8443/x?y"):
            body = problem(refusing.post("/v1/jobs", json=spec_document(**naming(url))), 422, "invalid_spec")
            assert pointers(body) == {pointer: "host_not_allowed"}, url


def test_names_and_public_addresses_are_accepted(sqlite_app: App, place):
    naming, _ = place
    for host in ALLOWED:
        answer = sqlite_app.post("/v1/jobs", json=spec_document(**naming(f"https://{host}/")))
        assert answer.status_code == 201, answer.text


def test_a_plan_and_a_preview_say_the_same(refusing: App):
    url = "http://169.254.169.254/"
    plan = refusing.post("/v1/jobs/plan", json=spec_document(**to_reward(url), **to_webhook(url))).json()
    codes = {error["pointer"]: error["code"] for error in plan["errors"]}
    assert codes == {"/rewards/0/http/url": "host_not_allowed", "/notify/0/url": "host_not_allowed"}
    asked = {**to_reward(url), "texts": [{"prompt": "a", "response": "b"}]}
    body = problem(refusing.post("/v1/rewards/preview", json=asked), 422, "invalid_request")
    assert pointers(body) == {"/rewards/0/http/url": "host_not_allowed"}


@pytest.fixture
def lenient(sqlite_url: str, home: Path) -> Iterator[App]:
    """An app whose operator has a judge and a receiver on this machine."""
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, reward_hosts=["127.0.0.1:9000"], webhook_hosts=["localhost"])
    with app_on(db, given) as running:
        yield running
    db.dispose()


def test_what_the_operator_allows_is_accepted_and_nothing_beside_it(lenient: App):
    own = {**to_reward("http://127.0.0.1:9000/score"), **to_webhook("http://localhost:9/hook")}
    assert lenient.post("/v1/jobs", json=spec_document(**own)).status_code == 201
    swapped = {**to_reward("http://localhost:9/score"), **to_webhook("http://127.0.0.1:9000/hook")}
    body = problem(lenient.post("/v1/jobs", json=spec_document(**swapped)), 422, "invalid_spec")
    assert pointers(body) == {"/rewards/0/http/url": "host_not_allowed", "/notify/0/url": "host_not_allowed"}


def test_a_fork_and_a_retry_are_submits_too(lenient: App):
    job = lenient.post("/v1/jobs", json=spec_document(**to_reward("http://127.0.0.1:9000/score"))).json()["id"]
    assert lenient.post(f"/v1/jobs/{job}/cancel").status_code == 200
    lenient.context.settings.reward_hosts.clear()  # the operator has changed his mind
    body = problem(lenient.post(f"/v1/jobs/{job}/retry"), 422, "invalid_spec")
    assert pointers(body) == {"/rewards/0/http/url": "host_not_allowed"}


def test_grpc_refuses_the_same(sqlite_url: str, home: Path):
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0)
    create = pb.CreateJobRequest(spec=message(spec_document(**to_reward("http://[::ffff:10.0.0.1]/"))))
    with served_on(db, given) as running, grpc.insecure_channel(running.grpc) as channel:
        refused = refusal(lambda: JobServiceStub(channel).CreateJob(create))
    assert refused.violations == {"spec.rewards[0].http.url": "host_not_allowed"}
    db.dispose()
