"""The tests' own servers: restartable, and gone when whoever started them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support.servers import Postgres, Redis, wait_until

pytestmark = pytest.mark.slow

_START_AND_HANG = """
import sys, time
from tests.support.servers import Postgres, Redis
for server in Postgres(), Redis():
    server.start()
    print(server.port, server.folder, flush=True)
time.sleep(600)
"""


def test_servers_end_with_a_killed_owner() -> None:
    command = [sys.executable, "-c", _START_AND_HANG]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert owner.stdout is not None
    servers = [owner.stdout.readline().split() for _ in range(2)]
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    folders = [Path(folder) for _, folder in servers]
    wait_until(lambda: not any(folder.exists() for folder in folders), 60, lambda: f"{folders} are still there")


def test_postgres_keeps_its_data_over_a_restart() -> None:
    server = Postgres(durable=True)
    server.start()
    server.create_database("kept")
    server.stop()
    assert not server.answers()
    server.start()
    psycopg.connect(server.dsn("kept")).close()
    server.close()
    assert not server.folder.exists()


def test_redis_forgets(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == []
        client.set("a", "b")


def test_redis_restarts_on_the_same_port() -> None:
    server = Redis()
    server.start()
    server.stop()
    server.start()
    assert server.answers()
    server.close()
