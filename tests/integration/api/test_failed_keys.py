"""Requests without a key that works, from one address: told to wait, over both doors, and nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2 as details

from api.rpc.v1 import access_service_pb2 as pb
from api.rpc.v1.access_service_pb2_grpc import AccessServiceStub
from jobs.auth import create_key
from jobs.db import Database
from tests.support.grpc_api import refusal
from tests.support.http_api import PEPPER, Served, served_on, settings
from tests.support.problem_json import problem

BURST = 4


@pytest.fixture
def running(sqlite_url: str, home: Path) -> Iterator[Served]:
    """Both doors behind a proxy that is trusted, with patience for four bad keys of an address."""
    db = Database(sqlite_url)
    given = settings(
        home,
        sqlite_url,
        http_port=0,
        grpc_port=0,
        failed_keys_per_second=0.01,
        failed_keys_burst=BURST,
        trusted_proxies=["127.0.0.1"],
    )
    with served_on(db, given) as served:
        yield served
    db.dispose()


def me(running: Served, key: str | None, client: str) -> httpx.Response:
    """Ask from an address, as the proxy would say it."""
    headers = {"X-Forwarded-For": f"192.0.2.66, {client}"}  # the first part is the client's own invention
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return httpx.get(f"{running.http}/v1/me", headers=headers, timeout=60)


def test_bad_keys_are_limited_for_their_address_and_good_ones_are_not(running: Served):
    key = create_key(running.context.db, "ann", PEPPER)
    for number in range(BURST):
        problem(me(running, None if number % 2 else f"ppo_guess{number}", "198.51.100.7"), 401, "unauthenticated")
    refused = me(running, "ppo_guess", "198.51.100.7")
    body = problem(refused, 429, "rate_limited")
    assert 50 < int(refused.headers["Retry-After"]) <= 100
    assert refused.headers["RateLimit-Policy"] == '"failed-keys";q=4;w=400'
    assert "address" in body["detail"]
    assert me(running, key, "198.51.100.7").json()["owner"] == "ann"
    problem(me(running, "ppo_guess", "198.51.100.8"), 401, "unauthenticated")

    with grpc.insecure_channel(running.grpc) as channel:
        stub = AccessServiceStub(channel)

        def ask(key: str, client: str) -> pb.GetMeResponse:
            metadata = [("authorization", f"Bearer {key}"), ("x-forwarded-for", client)]
            answer: pb.GetMeResponse = stub.GetMe(pb.GetMeRequest(), metadata=metadata, timeout=60)
            return answer

        often = refusal(lambda: ask("ppo_guess", "198.51.100.7"))
        assert (often.code, often.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
        assert 50 < often.details[details.RetryInfo].retry_delay.seconds <= 100
        assert ask(key, "198.51.100.7").owner == "ann"
        assert refusal(lambda: ask("ppo_guess", "198.51.100.9")).code == grpc.StatusCode.UNAUTHENTICATED


def test_bad_keys_over_grpc_count_for_http_too(running: Served):
    create_key(running.context.db, "ann", PEPPER)
    metadata = [("authorization", "Bearer ppo_guess"), ("x-forwarded-for", "2001:db8::7")]
    with grpc.insecure_channel(running.grpc) as channel:
        stub = AccessServiceStub(channel)
        for _ in range(BURST):
            code = refusal(lambda: stub.GetMe(pb.GetMeRequest(), metadata=metadata)).code
            assert code == grpc.StatusCode.UNAUTHENTICATED
    problem(me(running, "ppo_guess", "2001:db8::8"), 429, "rate_limited")
