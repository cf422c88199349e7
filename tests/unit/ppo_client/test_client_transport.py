"""Retries and typed errors, against a real server that misbehaves as told."""

from __future__ import annotations

import json
import socket
import time

import pytest

from ppo_client import errors
from ppo_client.client import PPOClient
from ppo_client.transport import RetryPolicy
from tests.support.client_values import job_view
from tests.support.scripted_http import Reply, json_reply, problem, serve

FAST = RetryPolicy(attempts=4, first_wait_seconds=0.01)
JOB = json_reply(job_view().model_dump(mode="json"))


def client(url: str, **options: object) -> PPOClient:
    return PPOClient(url, "ppo_secret", retry=FAST, **options)


def test_submit_repeats_the_same_idempotency_key_until_it_is_answered():
    replies = [Reply(drop=True), problem(503, title="away"), Reply(502, b"<html>"), JOB]
    with serve(replies) as server, client(server.url) as ppo:
        assert ppo.submit({"name": "x"}).id == "job_01"
    keys = {asked.headers["Idempotency-Key"] for asked in server.asked}
    assert len(server.asked) == 4
    assert len(keys) == 1
    assert json.loads(server.asked[0].body) == {"name": "x"}
    assert server.asked[0].headers["Authorization"] == "Bearer ppo_secret"


def test_two_submits_have_two_idempotency_keys():
    with serve([JOB, JOB]) as server, client(server.url) as ppo:
        ppo.submit({})
        ppo.submit({})
    assert server.asked[0].headers["Idempotency-Key"] != server.asked[1].headers["Idempotency-Key"]


def test_retry_after_is_obeyed():
    with serve([problem(429, headers={"Retry-After": "1"}), JOB]) as server, client(server.url) as ppo:
        started = time.monotonic()
        ppo.get("job_01")
        assert time.monotonic() - started >= 1.0


def test_a_retry_after_that_is_too_long_goes_to_the_caller():
    with (
        serve([problem(429, headers={"Retry-After": "3600"})]) as server,
        client(server.url) as ppo,
        pytest.raises(errors.RateLimited) as caught,
    ):
        ppo.get("job_01")
    assert caught.value.retry_after_seconds == 3600
    assert len(server.asked) == 1


def test_a_refusal_is_not_retried_and_shows_every_problem():
    problems = [
        {"pointer": "/ppo/stepz", "code": "unknown", "detail": "unknown field", "suggestion": "steps"},
        {
            "pointer": "/kl/penalty",
            "code": "enum",
            "detail": "not one of them",
            "given": "kll",
            "allowed": ["kl", "abs"],
        },
    ]
    reply = problem(
        422, code="invalid_spec", title="The spec cannot be run", detail="/ppo/stepz: unknown field", errors=problems
    )
    with serve([reply]) as server, client(server.url) as ppo, pytest.raises(errors.InvalidRequest) as caught:
        ppo.submit({})
    assert len(server.asked) == 1
    assert caught.value.code == "invalid_spec"
    assert str(caught.value) == (
        "The spec cannot be run\n"
        "  /ppo/stepz: unknown field\n"
        "      try: steps\n"
        "  /kl/penalty: not one of them (given: kll)\n"
        "      allowed: kl, abs"
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthenticated), (403, errors.Forbidden), (404, errors.NotFound), (409, errors.Conflict)],
)
def test_statuses_become_types(status, kind):
    with (
        serve([problem(status, title="no", state="succeeded")]) as server,
        client(server.url) as ppo,
        pytest.raises(kind) as caught,
    ):
        ppo.cancel("job_01")
    assert caught.value.extra["state"] == "succeeded"


def test_a_service_that_is_not_there_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with client(url) as ppo, pytest.raises(errors.ServiceUnreachable, match=url):
            ppo.get("job_01")


def test_an_answer_that_is_not_json_is_no_service_of_ours():
    with (
        serve([Reply(200, b"<html>hello")]) as server,
        client(server.url) as ppo,
        pytest.raises(errors.ProtocolError, match=server.url),
    ):
        ppo.get("job_01")


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serve([JOB]) as server, client(server.url) as ppo:
        assert ppo.get("job_01").id == "job_01"


def test_ids_cannot_lead_to_another_path():
    with serve([JOB]) as server, client(server.url) as ppo:
        ppo.get("../v2?x=1")
    assert server.asked[0].path == "/v1/jobs/..%2Fv2%3Fx%3D1"


def test_list_walks_the_pages_only_as_far_as_needed():
    def page(name: str, token: str | None) -> Reply:
        items = [job_view(id=name).model_dump(mode="json")]
        return json_reply({"items": items, "next_page_token": token})

    with serve([page("job_1", "t1"), page("job_2", "t2"), page("job_3", None)]) as server, client(server.url) as ppo:
        jobs = ppo.list(states=["running", "queued"], labels={"team": "demo"}, page_size=1)
        assert [next(jobs).id, next(jobs).id] == ["job_1", "job_2"]
        assert len(server.asked) == 2
        assert [job.id for job in jobs] == ["job_3"]
    assert server.asked[0].path == "/v1/jobs?page_size=1&state=running&state=queued&label=team%3Ddemo"
    assert server.asked[2].path.endswith("&page_token=t2")
