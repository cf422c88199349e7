"""The commands of docker-compose.yml, with its environment, as processes on real Postgres and Redis."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support import compose
from tests.support.databases import copied_postgres
from tests.support.servers import free_port, wait_until
from tests.support.source_tree import ROOT
from tests.support.specs import spec_document
from tests.support.workers import ENGINE_COMMAND

pytestmark = pytest.mark.slow

SERVICES = compose.services()
REFUSED = 2
START_SECONDS = 60.0


class Cluster:
    """Runs what a service of the compose file runs; only addresses and folders are of this machine."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self.folder = folder
        self.http_port, self.metrics_port = free_port(), free_port()
        self._here = {
            "PPO_HOME": str(folder / "home"),
            "PPO_MODEL_ROOTS": str(folder / "models"),
            "PPO_DATABASE_URL": database_url,
            "PPO_BROKER_URL": redis_url,
            "PPO_HTTP_PORT": str(self.http_port),
            "PPO_GRPC_PORT": str(free_port()),
            "PPO_METRICS_PORT": str(self.metrics_port),
            "PPO_METRICS_ADVERTISE_HOST": "127.0.0.1",
            "PPO_ENGINE_COMMAND": json.dumps(ENGINE_COMMAND),
            "HF_HOME": str(folder / "hub"),
        }
        (folder / "models").mkdir()

    def environment(self, name: str) -> dict[str, str]:
        """The service's variables, with this machine's addresses in place of the containers'."""
        given = {variable: str(value) for variable, value in SERVICES[name]["environment"].items()}
        local = {variable: value for variable, value in self._here.items() if variable in given}
        extra = {key: self._here[key] for key in ("PPO_METRICS_ADVERTISE_HOST", "PPO_ENGINE_COMMAND")}
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **given, **local, **extra}

    def run(self, name: str, command: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a service to its end, or another command in its place as `docker compose run` does."""
        return subprocess.run(
            interpreted(command or SERVICES[name]["command"]),
            cwd=self.folder,
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def service(self, name: str):
        """A service that runs; at the end it is told to stop, and must do so well."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                interpreted(SERVICES[name]["command"]),
                cwd=self.folder,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield process
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()

    def wait_until_healthy(self, name: str) -> None:
        """The service's own health check, on the ports of this machine."""
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        ports = {"8080": str(self.http_port), "9101": str(self.metrics_port)}
        for port, here in ports.items():
            command[-1] = command[-1].replace(f":{port}/", f":{here}/")
        log = self.folder / f"{name}.log"
        wait_until(lambda: self.run(name, command).returncode == 0, START_SECONDS, log.read_text)


def interpreted(command: list[str]) -> list[str]:
    return [sys.executable if part == "python" else part for part in command]


@pytest.fixture
def cluster(tmp_path, postgres_server, redis_url):
    with copied_postgres(postgres_server) as database_url:
        yield Cluster(tmp_path, database_url, redis_url)


def test_the_cluster_comes_up_in_the_documented_order(cluster):
    assert cluster.run("migrations").returncode == 0
    keyless = cluster.run("api")
    assert keyless.returncode == REFUSED
    assert "create-key" in keyless.stderr
    made = cluster.run(*documented_key_command())
    assert made.returncode == 0

    with ExitStack() as running:
        for name in ("api", "relay", "worker"):
            running.enter_context(cluster.service(name))
        for name in ("api", "worker"):
            cluster.wait_until_healthy(name)
        with httpx.Client(base_url=f"http://127.0.0.1:{cluster.http_port}", timeout=10) as http:
            assert http.get("/v1/jobs").status_code == httpx.codes.UNAUTHORIZED
            http.headers["Authorization"] = f"Bearer {made.stdout.strip()}"
            job = run_a_job(http)
            wait_until(lambda: bool(http.get("/sd/workers").json()), START_SECONDS, lambda: "no worker is known")
            (target,) = http.get("/sd/workers").json()
        assert job["state"] == "succeeded"
        assert target["targets"] == [f"127.0.0.1:{cluster.metrics_port}"]


def documented_key_command():
    """Service and command of the line that makes the first key, as docker-compose.yml and the guide have it."""
    lines = {line_of(path) for path in ("docker-compose.yml", "docs/operations.md")}
    ((name, command),) = lines
    # `docker compose run` starts what a service waits for, so the tables are there.
    assert SERVICES[name]["depends_on"]["migrations"] == {"condition": "service_completed_successfully"}
    return name, command.split()


def line_of(path):
    text = (ROOT / path).read_text("utf-8")
    return re.search(r"docker compose run --rm (\w+) (python -m jobs\.admin create-key \w+)", text).groups()


def run_a_job(http):
    """Submit a job for the scripted engine and wait for its end."""
    spec = spec_document(prompts={"inline": [json.dumps({})]}, ppo__steps=3)
    job = http.post("/v1/jobs", json=spec).raise_for_status().json()
    deadline = time.monotonic() + START_SECONDS
    while not job["done"] and time.monotonic() < deadline:
        time.sleep(0.1)
        job = http.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
    return job
