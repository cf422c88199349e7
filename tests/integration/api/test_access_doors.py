"""Keys, quotas and the audit log through the client, the command line and gRPC, with a real service."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2 as details

from api.rpc.v1 import access_service_pb2 as pb
from api.rpc.v1 import job_service_pb2 as job_pb
from api.rpc.v1.access_service_pb2_grpc import AccessServiceStub
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub
from jobs.access_requests import KeyRequest, QuotaRequest
from jobs.access_views import AuditView, KeyView, MeView, QuotaView, RateLimitView, Usage
from jobs.auth import create_key
from jobs.db import Database
from jobs.principal import Scope
from ppo_client import cli
from ppo_client.client import PPOClient
from ppo_client.errors import Forbidden, NotFound, RateLimited, Unauthenticated
from ppo_client.transport import RetryPolicy
from tests.support.grpc_api import message, refusal
from tests.support.http_api import PEPPER, Served, served_on, settings
from tests.support.specs import spec_document

ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def running(sqlite_url: str, home: Path) -> Iterator[Served]:
    """Both doors, with room for sixty requests of an owner and hardly more."""
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0, rate_limit_per_second=0.1, rate_limit_burst=60)
    with served_on(db, given) as served:
        yield served
    db.dispose()


@pytest.fixture
def admin(running: Served) -> str:
    """An administrator's key."""
    return create_key(running.context.db, "root", PEPPER, scopes=[Scope.ADMIN])


def metadata(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def test_the_client_manages_keys_and_quotas(running: Served, admin: str):
    with PPOClient(running.http, admin, retry=ONCE) as client:
        made = client.keys.create(owner="team/a", name="ci", scopes=[Scope.READ, "submit"], expire_seconds=600)
        assert client.me().scopes == ["admin"]
        assert {view.owner for view in client.keys.list(everybody=True)} == {"root", "team/a"}
        assert [view.owner for view in client.keys.list()] == ["root"]
        assert client.set_quota("team/a", max_queued_jobs=1).queued_jobs.limit == 1
        assert client.quota("team/a").queued_jobs.used == 0
        with PPOClient(running.http, made.key, retry=ONCE) as theirs:
            assert theirs.me().owner == "team/a"
            job = theirs.submit(spec_document())
            with pytest.raises(RateLimited) as full:
                theirs.submit(spec_document())
            assert (full.value.code, full.value.retry_after_seconds) == ("quota_exceeded", 30)
            with pytest.raises(Forbidden, match="control"):
                theirs.cancel(job.id)
            with pytest.raises(Forbidden):
                theirs.keys.create(name="more")
        assert client.keys.revoke(made.id).revoke_time
        with pytest.raises(NotFound):
            client.keys.revoke("key_none")
        found = list(client.audit(owner="team/a"))
        assert [(entry.action, entry.outcome) for entry in found] == [
            ("key.create", "forbidden"),
            ("job.cancel", "forbidden"),
            ("job.submit", "quota_exceeded"),
            ("job.submit", "done"),
        ]
        assert [entry.owner for entry in client.audit(target=job.id)] == ["team/a", "team/a"]


Ppo = Callable[..., str]


@pytest.fixture
def ppo(running: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ppo:
    """Runs the command; gives what it prints."""
    monkeypatch.setenv("PPO_URL", running.http)
    monkeypatch.setenv("PPO_KEY_PEPPER", PEPPER.get_secret_value())
    monkeypatch.setattr("ppo_client.commands.options.console._width", 200)  # COLUMNS is read once, at the import

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ppo", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        assert not caught.value.code, captured.err
        # The service runs in this process, and its log goes where the command prints.
        return "".join(line for line in captured.out.splitlines(keepends=True) if "[info" not in line)

    return run


@pytest.mark.slow
def test_the_command_line(ppo: Ppo, home: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    (home / "ppo.db").symlink_to(sqlite_url.removeprefix("sqlite:///"))  # where `ppo up` would have made it
    assert "local" in ppo("me")
    first = ppo("keys", "create", "--owner", "root", "--scope", "admin", "--local", str(home)).strip()
    monkeypatch.setenv("PPO_KEY", first)
    made = json.loads(ppo("keys", "create", "--owner", "ann", "--name", "ci", "--days", "1", "--json"))
    assert made["scopes"] == ["read", "submit", "control"]
    listed = ppo("keys", "ls", "--all")
    assert made["id"] in listed
    assert made["key"] not in listed
    assert "ci" in ppo("keys", "ls", "--local", str(home))
    assert "0 of 5" in ppo("quotas", "set", "ann", "--queued", "5")
    assert json.loads(ppo("quotas", "show", "ann", "--json"))["queued_jobs"]["limit"] == 5
    assert "revoked" in ppo("keys", "revoke", made["id"])
    log = ppo("audit", "--target", made["id"])
    assert log.index("key.revoke") < log.index("key.create")
    assert "key.create" in ppo("audit", "--owner", "operator")


def test_grpc_says_the_same(running: Served, admin: str):
    with grpc.insecure_channel(running.grpc) as channel, PPOClient(running.http, admin) as client:
        stub, as_admin = AccessServiceStub(channel), metadata(admin)
        made = stub.CreateKey(pb.CreateKeyRequest(owner="ann", name="n", expire_seconds=600), metadata=as_admin)
        over_rest = next(iter(client.keys.list(owner="ann")))
        assert made.secret.startswith("ppo_")
        assert (made.api_key.id, list(made.api_key.scopes)) == (over_rest.id, over_rest.scopes)
        assert made.api_key.expire_time.ToDatetime(over_rest.create_time.tzinfo) == over_rest.expire_time
        me = stub.GetMe(pb.GetMeRequest(), metadata=metadata(made.secret))
        assert (me.owner, me.key_id, me.rate_limit.burst) == ("ann", over_rest.id, 60)
        assert not me.quota.running_jobs.HasField("limit")
        quota = stub.SetQuota(pb.SetQuotaRequest(owner="ann", max_queued_jobs=0), metadata=as_admin).quota
        assert (quota.queued_jobs.limit, quota.is_default) == (0, False)
        assert stub.GetQuota(pb.GetQuotaRequest(owner="ann"), metadata=as_admin).quota == quota
        page = stub.ListKeys(pb.ListKeysRequest(everybody=True, page_size=1), metadata=as_admin)
        assert len(page.api_keys) == 1
        assert page.next_page_token
        assert stub.RevokeKey(pb.RevokeKeyRequest(key_id=over_rest.id), metadata=as_admin).api_key.HasField(
            "revoke_time"
        )
        entries = stub.ListAuditEntries(pb.ListAuditEntriesRequest(owner="root"), metadata=as_admin).entries
        assert [entry.action for entry in entries] == ["key.revoke", "quota.set", "key.create"]
        assert entries[0].address == "127.0.0.1"
        assert dict(entries[1].detail) == {
            "max_queued_jobs": 0,
            **dict.fromkeys(("max_running_jobs", "max_datasets", "max_stored_bytes")),
        }


def test_grpc_refuses_as_http_does(running: Served, admin: str):
    db = running.context.db
    ann = metadata(create_key(db, "ann", PEPPER, scopes=[Scope.SUBMIT, Scope.KEYS]))
    with grpc.insecure_channel(running.grpc) as channel:
        stub, jobs = AccessServiceStub(channel), JobServiceStub(channel)
        lacking = refusal(lambda: jobs.ListJobs(job_pb.ListJobsRequest(), metadata=ann))
        assert (lacking.code, lacking.reason) == (grpc.StatusCode.PERMISSION_DENIED, "forbidden")
        assert dict(lacking.details[details.ErrorInfo].metadata) == {"scope": "read"}
        stronger = refusal(lambda: stub.CreateKey(pb.CreateKeyRequest(scopes=["admin"]), metadata=ann))
        assert stronger.details[details.ErrorInfo].metadata["scope"] == "admin"
        wrong = refusal(lambda: stub.CreateKey(pb.CreateKeyRequest(scopes=["reed"]), metadata=ann))
        assert wrong.violations == {"scopes[0]": "unknown_value"}
        nobody = refusal(lambda: stub.RevokeKey(pb.RevokeKeyRequest(key_id="key_none"), metadata=ann))
        assert (nobody.code, nobody.reason) == (grpc.StatusCode.NOT_FOUND, "key_not_found")
        quota = pb.SetQuotaRequest(owner="ann", max_queued_jobs=0)
        stub.SetQuota(quota, metadata=metadata(admin))
        create = job_pb.CreateJobRequest(spec=message(spec_document()))
        full = refusal(lambda: jobs.CreateJob(create, metadata=ann))
        assert (full.code, full.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota_exceeded")
        assert full.details[details.QuotaFailure].violations[0].subject == "owner"
        for _ in range(60 - 5):
            stub.GetMe(pb.GetMeRequest(), metadata=ann)
        often = refusal(lambda: stub.GetMe(pb.GetMeRequest(), metadata=ann))
        assert (often.code, often.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
        assert 5 <= often.details[details.RetryInfo].retry_delay.seconds <= 10
        # One owner has one bucket for both doors.
        key = ann[0][1].removeprefix("Bearer ")
        with PPOClient(running.http, key, retry=ONCE) as client, pytest.raises(RateLimited):
            client.me()
        with PPOClient(running.http, retry=ONCE) as stranger, pytest.raises(Unauthenticated):
            stranger.me()


@pytest.mark.parametrize(
    ("view", "fields"),
    [
        (KeyView, pb.ApiKey),
        (Usage, pb.Usage),
        (QuotaView, pb.Quota),
        (RateLimitView, pb.RateLimit),
        (MeView, pb.GetMeResponse),
        (AuditView, pb.AuditEntry),
        (KeyRequest, pb.CreateKeyRequest),
    ],
)
def test_views_and_messages_have_the_same_fields(view, fields):
    assert set(view.model_fields) == {field.name for field in fields.DESCRIPTOR.fields}


def test_a_quota_is_asked_for_in_the_same_words():
    assert {*QuotaRequest.model_fields, "owner"} == {field.name for field in pb.SetQuotaRequest.DESCRIPTOR.fields}
