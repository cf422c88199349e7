"""How the front door starts, refuses to start, and comes back after a kill."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.context import Context
from api.server import Doors, StartRefused, check_start
from api.settings import ApiSettings
from jobs.auth import create_key
from jobs.db import Database
from jobs.errors import Unavailable
from tests.support.http_api import PEPPER, App, process_on, run_to_refusal, settings
from tests.support.servers import free_port
from tests.support.specs import spec_document


def test_tables_of_another_version_refuse_the_start(empty_database_url: str, home: Path):
    db = Database(empty_database_url)
    with pytest.raises(StartRefused, match=r"python -m jobs\.admin migrate"):
        check_start(settings(home, empty_database_url), db)
    db.dispose()


@pytest.mark.parametrize("where", [{"http_host": "0.0.0.0"}, {"grpc_host": "::"}])
def test_an_open_address_needs_a_key_first(database: Database, database_url: str, home: Path, where: dict[str, Any]):
    given = settings(home, database_url, **where)
    with pytest.raises(StartRefused, match="create-key"):
        check_start(given, database)
    create_key(database, "ann", PEPPER)
    check_start(given, database)


def test_a_loopback_address_needs_none(database: Database, database_url: str, home: Path):
    check_start(settings(home, database_url), database)


@pytest.mark.parametrize("port", ["http_port", "grpc_port"])
def test_a_taken_port_refuses_the_start(sqlite_app: App, home: Path, port: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"http_port": 0, "grpc_port": 0, port: taken.getsockname()[1]}
        given = ApiSettings(**{**sqlite_app.context.settings.model_dump(), **ports})

        async def open_doors() -> None:
            Doors(Context(given, sqlite_app.context.db))

        with pytest.raises(StartRefused, match=str(taken.getsockname()[1])):
            asyncio.run(open_doors())


def test_without_its_database_the_start_is_refused(home: Path):
    url = f"postgresql://nobody:hunter2@127.0.0.1:{free_port()}/none"
    db = Database(url)
    with pytest.raises(Unavailable) as caught:
        check_start(settings(home, url), db)
    assert "hunter2" not in str(caught.value)
    db.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "jobs.admin migrate"),
        ({"PPO_HTTP_PORT": "many"}, "PPO_HTTP_PORT"),
        ({"PPO_DATABASE_URL": "mysql://root:hunter2@db/x"}, "database_url"),
    ],
    ids=["no tables", "bad setting", "bad database"],
)
def test_a_refusal_is_one_clear_line_and_exit_code_2(home: Path, values: dict[str, str], reason: str):
    ended = run_to_refusal(home, f"sqlite:///{home}/empty.db", **values)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("python -m api: ")
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr + ended.stdout


@pytest.mark.slow
def test_what_was_answered_before_a_kill_is_there_after_it(sqlite_url: str, home: Path):
    key = {"Idempotency-Key": "once"}
    with process_on(home, sqlite_url) as process:
        first = httpx.post(f"{process.http}/v1/jobs", json=spec_document(), headers=key, timeout=60)
        process.popen.kill()
        process.popen.wait()
    with process_on(home, sqlite_url) as process:
        again = httpx.post(f"{process.http}/v1/jobs", json=spec_document(), headers=key, timeout=60)
        listed = httpx.get(f"{process.http}/v1/jobs", timeout=60).json()["items"]
    assert (first.status_code, again.status_code) == (201, 200)
    assert [job["id"] for job in listed] == [again.json()["id"]] == [first.json()["id"]]
