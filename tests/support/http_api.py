"""The front door for tests: the app in this process, or the real process on free ports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import SecretStr

from api.context import Context
from api.http.app import create_app
from api.server import Doors
from api.settings import ApiSettings
from jobs.db import Database
from tests.support.servers import wait_until

ROOT = Path(__file__).resolve().parents[2]
PEPPER = SecretStr("a pepper for tests")


def settings(home: Path, database_url: str, **values: Any) -> ApiSettings:
    """Settings that do not depend on this process's environment."""
    # All tests call from one address, and some try every operation without a key.
    own = {"http_host": "127.0.0.1", "grpc_host": "127.0.0.1", "failed_keys_burst": 10_000}
    given = {**own, "model_roots": [home / "models"], **values}
    return ApiSettings(home=home, database_url=database_url, key_pepper=PEPPER, **given)


@dataclass(frozen=True)
class App:
    """The real app and domain, called without a network. Answers are read whole, so no streams here."""

    context: Context
    portal: BlockingPortal
    client: httpx.AsyncClient

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request to its answer."""

        async def send() -> httpx.Response:
            return await self.client.request(method, path, **options)

        return self.portal.call(send)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


@contextmanager
def app_on(db: Database, given: ApiSettings) -> Iterator[App]:
    """The app over `db`."""
    context = Context(given, db)
    transport = httpx.ASGITransport(app=create_app(context))
    with start_blocking_portal() as portal:
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")
        yield App(context, portal, client)
        portal.call(client.aclose)


@dataclass(frozen=True)
class Served:
    """Both doors on free ports, served by a thread of this process."""

    context: Context
    http: str
    grpc: str


@contextmanager
def served_on(db: Database, given: ApiSettings) -> Iterator[Served]:
    """Both doors over `db`."""
    with start_blocking_portal() as portal:
        context = Context(given, db)

        async def open_doors() -> tuple[Doors, asyncio.Future[None]]:
            return Doors(context), asyncio.get_running_loop().create_future()

        doors, stop = portal.call(open_doors)
        serving = portal.start_task_soon(doors.serve_until, stop)
        try:
            yield Served(context, f"http://{doors.http_address}", doors.grpc_address)
        finally:
            portal.call(stop.set_result, None)
            serving.result(30)


@dataclass(frozen=True)
class Process:
    """`python -m api`, started."""

    popen: subprocess.Popen[str]
    http: str
    grpc: str
    log: Path

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(30)


def environment(home: Path, database_url: str, **values: str) -> dict[str, str]:
    """The variables of a process on free ports."""
    own = {
        "PPO_HOME": str(home),
        "PPO_DATABASE_URL": database_url,
        "PPO_KEY_PEPPER": PEPPER.get_secret_value(),
        "PPO_HTTP_PORT": "0",
        "PPO_GRPC_PORT": "0",
    }
    rest = {name: value for name, value in os.environ.items() if not name.startswith("PPO_")}
    return {**rest, **own, **values}


def run_to_refusal(home: Path, database_url: str, **values: str) -> subprocess.CompletedProcess[str]:
    """`python -m api` where it should not start."""
    command = [sys.executable, "-m", "api"]
    env = environment(home, database_url, **values)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def process_on(home: Path, database_url: str, **values: str) -> Iterator[Process]:
    """`python -m api` on free ports; killed at the end unless it has ended."""
    log = home / "api.log"
    with log.open("w") as stderr:
        popen = subprocess.Popen(
            [sys.executable, "-m", "api"],
            env=environment(home, database_url, **values),
            cwd=ROOT,
            stderr=stderr,
            text=True,
        )
    try:
        wait_until(lambda: _started(popen, log) is not None, 60, log.read_text)
        started = _started(popen, log) or {}
        yield Process(popen, f"http://{started['http']}", started["grpc"], log)
    finally:
        popen.kill()
        popen.wait()


def _started(popen: subprocess.Popen[str], log: Path) -> dict[str, Any] | None:
    text = log.read_text()
    if popen.poll() is not None:
        raise RuntimeError(f"the api ended at its start:\n{text}")
    return next((json.loads(line) for line in text.splitlines() if '"api_started"' in line), None)
