"""Secrets are planted wherever one may lie or be sent by mistake; none is ever seen again in what the service says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
import sqlalchemy as sa

from api.rpc.v1 import access_service_pb2 as access_pb
from api.rpc.v1 import job_service_pb2 as job_pb
from api.rpc.v1.access_service_pb2_grpc import AccessServiceStub
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub
from jobs.auth import create_key
from jobs.db import Database
from jobs.principal import Scope
from jobs.tables import Base
from tests.support.grpc_api import message
from tests.support.http_api import PEPPER, Process, process_on
from tests.support.servers import Postgres
from tests.support.specs import spec_document

pytestmark = pytest.mark.slow


def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


@dataclass
class Said:
    """Everything the service has said, and where."""

    parts: list[tuple[str, str]] = field(default_factory=list)

    def http(self, response: httpx.Response) -> httpx.Response:
        self.parts.append((str(response.request.url), f"{response.status_code} {response.headers} {response.text}"))
        return response

    def rpc(self, call: Any, request: Any, key: str) -> None:
        metadata = [("authorization", f"Bearer {key}"), ("x-request-id", key)]
        try:
            self.parts.append((type(request).__name__, str(call(request, metadata=metadata, timeout=60))))
        except grpc.RpcError as error:
            told = f"{error.code()} {error.details()} {error.initial_metadata()} {error.trailing_metadata()}"
            self.parts.append((type(request).__name__, told))

    def leaks(self, planted: dict[str, str]) -> list[str]:
        return [f"{name} in {where}" for name, value in planted.items() for where, text in self.parts if value in text]


@dataclass(frozen=True)
class House:
    """The service, with secrets in its environment."""

    process: Process
    db: Database
    planted: dict[str, str]
    said: Said
    database: str


@pytest.fixture
def house(postgres_server: Postgres, postgres_template_name: str, home: Path) -> Iterator[House]:
    names = ("database password", "wandb key", "hub token", "broker password", "reward token")
    planted = {name: canary() for name in names} | {"pepper": PEPPER.get_secret_value()}
    database = "canaries"  # dropped by the test
    own_url = postgres_server.create_database(database, template=postgres_template_name)
    db = Database(own_url)
    planted["key"] = create_key(db, "ann", PEPPER, scopes=[Scope.ADMIN])
    planted["revoked key"] = create_key(db, "ann", PEPPER)
    token_file = home / "token"
    token_file.write_text(planted["reward token"])
    parts = urlsplit(own_url)
    address = parts.netloc.rpartition("@")[2]
    url = parts._replace(netloc=f"{parts.username}:{planted['database password']}@{address}").geturl()
    variables = {
        "WANDB_API_KEY": planted["wandb key"],
        "HF_TOKEN": planted["hub token"],
        "PPO_BROKER_URL": f"redis://:{planted['broker password']}@127.0.0.1:1/0",
        "PPO_REWARD_TOKEN_FILE": str(token_file),
    }
    with process_on(home, url, **variables) as process:
        yield House(process, db, planted, Said(), database)
    db.dispose()


def wrong_specs(house: House) -> Iterator[dict[str, Any]]:
    """Secrets where a user may put them by mistake."""
    wandb, token, key = (house.planted[name] for name in ("wandb key", "reward token", "key"))
    reward = {"name": "r", "http": {"url": f"https://user:{token}@rewards.example.org/"}}
    yield spec_document(logging={"wandb": {"project": "p", "api_key": wandb}})
    yield spec_document(rewards=[{"name": "r", "http": {"url": "https://r.example.org/", "token": token}}])
    yield spec_document(rewards=[{"name": "r", "http": {**reward["http"], "headers": {"Authorization": token}}}])
    yield spec_document(rewards=[reward])
    yield spec_document(kl={"penalty": key}, seed=f"Bearer {token}")
    yield spec_document(**{key: 1})


def ask_over_http(house: House, http: httpx.Client) -> None:
    said, key, revoked = house.said, house.planted["key"], house.planted["revoked key"]
    for value in (f"Bearer {key}", f"Basic {key}", f"Bearer {key} x", f"Token {key}", key, f"Bearer {revoked}x"):
        for path in ("/v1/jobs", "/v1/me", "/v1/audit", f"/v1/{key}", f"/v1/jobs/{key}", f"/v1/jobs?key={key}"):
            said.http(http.get(path, headers={"Authorization": value, "X-Request-Id": key}))
    mine = {"Authorization": f"Bearer {key}", "Cookie": f"key={key}"}
    for method, path in (("PUT", f"/v1/jobs/{key}"), ("DELETE", f"/v1/keys/{key}"), ("POST", f"/v1/jobs/{key}/cancel")):
        said.http(http.request(method, path, headers=mine))
    for text in (f'{{"a": "{key}', f'{{"{key}": 1, "{key}": 2}}', f'["{key}"]', key):
        json = {**mine, "Content-Type": "application/json"}
        said.http(http.post("/v1/jobs", content=text.encode(), headers=json))
        said.http(http.post("/v1/keys", content=text.encode(), headers={**mine, "Content-Type": key}))
    for spec in wrong_specs(house):
        said.http(http.post("/v1/jobs", json=spec, headers=mine))
    for body in ({"name": key}, {"scopes": [key]}, {key: key}):
        said.http(http.post("/v1/keys", json=body, headers={**mine, "Authorization": f"Bearer {revoked}"}))


def ask_over_grpc(house: House, channel: grpc.Channel) -> None:
    jobs, access = JobServiceStub(channel), AccessServiceStub(channel)
    said, key = house.said, house.planted["key"]
    for sent in (key, house.planted["revoked key"], f"{key} x"):
        said.rpc(jobs.GetJob, job_pb.GetJobRequest(job_id=key), sent)
        said.rpc(jobs.CancelJob, job_pb.CancelJobRequest(job_id=key), sent)
        said.rpc(jobs.ListJobs, job_pb.ListJobsRequest(page_token=key), sent)
        said.rpc(jobs.CreateJob, job_pb.CreateJobRequest(spec=message(spec_document(kl={"penalty": key}))), sent)
        said.rpc(access.CreateKey, access_pb.CreateKeyRequest(scopes=[key]), sent)
        said.rpc(access.RevokeKey, access_pb.RevokeKeyRequest(key_id=key), sent)
        said.rpc(access.GetMe, access_pb.GetMeRequest(), sent)
        said.rpc(access.ListAuditEntries, access_pb.ListAuditEntriesRequest(), sent)


def rows(db: Database) -> Iterator[tuple[str, str]]:
    """Every row of every table."""
    with db.read() as session:
        for table in Base.metadata.sorted_tables:
            yield from ((table.name, repr(tuple(row))) for row in session.execute(sa.select(table)))


def test_no_planted_secret_is_ever_seen_again(house: House, postgres_server: Postgres):
    key, said = house.planted["key"], house.said
    with (
        httpx.Client(base_url=house.process.http, timeout=60) as http,
        grpc.insecure_channel(house.process.grpc) as channel,
    ):
        mine = {"Authorization": f"Bearer {key}"}
        made = http.post("/v1/keys", json={"name": "n"}, headers=mine).json()
        house.planted["key made here"] = made["key"]
        assert said.http(http.get("/v1/me", headers={"Authorization": f"Bearer {made['key']}"})).status_code == 200
        assert said.http(http.post("/v1/jobs", json=spec_document(), headers=mine)).status_code == 201
        revoked = house.planted["revoked key"]
        told = http.get("/v1/me", headers={"Authorization": f"Bearer {revoked}"}).json()
        said.http(http.request("DELETE", f"/v1/keys/{told['key_id']}", headers=mine))
        ask_over_http(house, http)
        ask_over_grpc(house, channel)
        for path in ("/metrics", "/metrics/jobs", "/sd/workers", "/problems", "/v1/capabilities", "/openapi.json"):
            said.http(http.get(path, headers=mine))
        said.parts += rows(house.db)
        house.db.dispose()
        postgres_server.drop_database(house.database)
        for path in ("/readyz", "/v1/jobs", "/v1/me", "/metrics"):
            answer = said.http(http.get(path, headers={"Authorization": f"Bearer {house.planted['key made here']}"}))
        assert answer.status_code == 200
        said.rpc(JobServiceStub(channel).ListJobs, job_pb.ListJobsRequest(), key)
    log = house.process.log.read_text()
    assert log.count("request_served") > 60
    assert '"status": 503' in log
    said.parts.append(("log", log))
    assert said.leaks(house.planted) == []
    assert len(said.parts) > 100


def test_a_leak_would_be_seen():
    said = Said([("here", "a text with canary1 in it")])
    assert said.leaks({"secret": "canary1", "other": "canary2"}) == ["secret in here"]
