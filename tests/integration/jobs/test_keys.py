"""API keys: shown once, stored as a hash, useless when revoked."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from jobs import admin
from jobs.auth import Principal, authenticate, create_key, has_keys, list_keys, revoke_key
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import InvalidArgument, Unauthenticated
from jobs.service import get
from jobs.states import JobState
from jobs.tables import ApiKey
from tests.support.attempts import ANN, job_in
from tests.support.invariants import check_invariants

PEPPER = SecretStr("pepper")


def test_a_key_leads_to_its_owner(database: Database) -> None:
    assert not has_keys(database)
    key = create_key(database, "ann", PEPPER)
    other = create_key(database, "bob", PEPPER)
    assert authenticate(database, key, PEPPER) == Principal("ann")
    assert authenticate(database, other, PEPPER) == Principal("bob")
    assert has_keys(database)


def test_only_a_hash_is_stored(database: Database) -> None:
    key = create_key(database, "ann", PEPPER)
    with database.read() as session:
        [row] = session.execute(sa.select(ApiKey.__table__))
    assert key not in repr(row)
    assert len(row.key_hash) == 64


def test_a_revoked_key_is_useless_and_does_not_open_the_door(database: Database) -> None:
    key = create_key(database, "ann", PEPPER)
    [info] = list_keys(database)
    assert revoke_key(database, info.id)
    with pytest.raises(Unauthenticated):
        authenticate(database, key, PEPPER)
    assert has_keys(database)
    assert not revoke_key(database, info.id)


def test_the_last_use_is_written_down_once_a_minute(database: Database) -> None:
    key = create_key(database, "ann", PEPPER)
    assert list_keys(database)[0].last_use_time is None
    authenticate(database, key, PEPPER)
    first = list_keys(database)[0].last_use_time
    assert first is not None
    authenticate(database, key, PEPPER)
    assert list_keys(database)[0].last_use_time == first
    with database.transaction() as session:
        session.execute(sa.update(ApiKey).values(last_use_time=db_time(-61)))
    authenticate(database, key, PEPPER)
    again = list_keys(database)[0].last_use_time
    assert again is not None
    assert again >= first


def test_a_reader_is_let_in_by_a_database_that_takes_no_writes(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.db._BUSY_SECONDS", 0.1)
    db = Database(sqlite_url)
    key = create_key(db, "ann", PEPPER)
    with Database(sqlite_url).transaction() as writer:
        writer.execute(sa.text("SELECT 1"))  # takes the write lock
        assert authenticate(db, key, PEPPER) == Principal("ann")
    assert list_keys(db)[0].last_use_time is None


@pytest.mark.parametrize("key", ["", "ppo_", "ppo_" + "a" * 43, "ppo_" + "é" * 43, "x" * 100_000, "\x00"])
def test_anything_else_is_refused(sqlite_url: str, key: str) -> None:
    db = Database(sqlite_url)
    create_key(db, "ann", PEPPER)
    with pytest.raises(Unauthenticated):
        authenticate(db, key, PEPPER)


def test_another_pepper_voids_the_key(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    key = create_key(db, "ann", PEPPER)
    with pytest.raises(Unauthenticated):
        authenticate(db, key, SecretStr("salt"))


@pytest.mark.parametrize("owner", ["", "a" * 129, "two\nlines"])
def test_an_owner_has_a_usable_name(sqlite_url: str, owner: str) -> None:
    with pytest.raises(InvalidArgument):
        create_key(Database(sqlite_url), owner, PEPPER)


def test_operators_make_list_and_revoke_keys(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PPO_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("PPO_KEY_PEPPER", "pepper")

    def run(*arguments: str) -> tuple[int, str]:
        return admin.main(list(arguments)), capsys.readouterr().out.strip()

    _, key = run("create-key", "ann")
    assert authenticate(Database(sqlite_url), key, PEPPER) == ANN
    _, listed = run("list-keys")
    key_id, owner, _, state, scopes = listed.split("\t")
    assert (owner, state, scopes) == ("ann", "in use", "read,submit,control")
    assert key not in listed
    assert run("revoke-key", key_id) == (0, "revoked")
    assert run("revoke-key", key_id)[0] == 1
    assert "revoked" in run("list-keys")[1]
    assert run("create-key", "")[0] == 1


def test_an_operator_can_take_a_job_from_its_worker(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(sqlite_url)
    job_id, _ = job_in(db, JobState.RUNNING)
    monkeypatch.setenv("PPO_DATABASE_URL", sqlite_url)
    assert admin.main(["requeue", job_id]) == 0
    assert get(db, ANN, job_id).state is JobState.QUEUED
    assert admin.main(["requeue", job_id]) == 1
    check_invariants(db)
