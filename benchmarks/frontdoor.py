"""Submitting and getting jobs, against a minimal FastAPI and SQLAlchemy app on the same Postgres.

    python -m benchmarks.frontdoor [--rounds 7] [--each 100] [--rows 100000] [--out FILE.json]

Three servers run: the service with a full table, the service with an empty one, and the minimal app with a full table.
In every round each of them gets the same load in turn from four clients, so that what disturbs one disturbs all;
numbers are medians over rounds. The service asks for a key, as it does beyond one machine; the minimal app does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from benchmarks.clients import Load, drive
from benchmarks.machine import machine
from benchmarks.setting_up import REPOSITORY
from jobs import service
from jobs.auth import Principal, create_key
from jobs.db import Database
from jobs.migrate import migrate
from jobs.spec import parse_spec
from tests.support.servers import Postgres, free_port, wait_until

CLIENTS = 4
OWNER = "bench"
THROUGHPUT = 0.7
"""Least share of the minimal app's throughput."""
SPEC: dict[str, Any] = {
    **json.loads((REPOSITORY / "examples" / "specs" / "austen-positive.json").read_text()),
    "model": {"policy": {"hub": "org/model"}},
}


@dataclass
class Server:
    """A running front door and what was measured of it."""

    title: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    loads: dict[str, list[Load]] = field(default_factory=lambda: {"submit": [], "get": []})

    def round(self, each: int) -> None:
        """Submit, then get what was submitted."""
        body = json.dumps(SPEC).encode()
        submitted = self._drive(lambda _: ("POST", "/v1/jobs", body), each, 201)
        ids = [json.loads(data)["id"] for data in submitted.bodies]
        got = self._drive(lambda turn: ("GET", f"/v1/jobs/{ids[turn]}", None), each, 200)
        self.loads["submit"].append(submitted)
        self.loads["get"].append(got)

    def forget(self) -> None:
        """Begin to measure."""
        self.loads = {"submit": [], "get": []}

    def per_second(self, what: str) -> float:
        return statistics.median(load.per_second for load in self.loads[what])

    def percentile(self, what: str, share: float) -> float:
        return statistics.median(load.percentile(share) for load in self.loads[what])

    def _drive(self, request: Any, each: int, expect: int) -> Load:
        return drive(self.port, request, clients=CLIENTS, each=each, headers=self.headers, expect=expect)


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--each", type=int, default=100, help="requests of each client in a round")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "var" / "bench" / "frontdoor.json")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        postgres = Postgres()
        stack.callback(postgres.close)
        postgres.start()
        full = stack.enter_context(our_server(postgres, "full", arguments.rows))
        empty = stack.enter_context(our_server(postgres, "empty", 0))
        minimal = stack.enter_context(minimal_server(postgres, arguments.rows))
        servers = (full, minimal, empty)
        for turn in range(arguments.rounds + 1):
            for server in servers:
                server.round(arguments.each)
                if server is not minimal:
                    drain(postgres, server.title)
                if turn == 0:  # a warm-up
                    server.forget()
    found = {"machine": machine(), "rows": arguments.rows, "results": results(full, minimal, empty)}
    print(table(found["results"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def results(full: Server, minimal: Server, empty: Server) -> list[dict[str, Any]]:
    """One row for submit, one for get."""
    return [
        {
            "what": what,
            "per_second": {server.title: server.per_second(what) for server in (full, minimal, empty)},
            "p50_seconds": {server.title: server.percentile(what, 0.5) for server in (full, minimal, empty)},
            "p99_seconds": {server.title: server.percentile(what, 0.99) for server in (full, minimal, empty)},
            "throughput_ratio": paired(full, minimal, lambda load: load.per_second, what),
            "p99_ratio_full_to_empty": paired(full, empty, lambda load: load.percentile(0.99), what),
        }
        for what in ("submit", "get")
    ]


def paired(one: Server, other: Server, number: Any, what: str) -> float:
    """Median over rounds of the ratio within a round."""
    pairs = zip(one.loads[what], other.loads[what], strict=True)
    return statistics.median(number(a) / number(b) for a, b in pairs)


def table(rows: list[dict[str, Any]]) -> str:
    """What a person reads."""
    lines = [
        "| | service/s | minimal/s | ratio | p50, p99 service | p50, p99 minimal | p99 full : empty |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, theirs = (
            f"{1000 * row['p50_seconds'][title]:.1f}, {1000 * row['p99_seconds'][title]:.1f} ms"
            for title in ("full", "minimal")
        )
        rate = row["per_second"]
        lines.append(
            f"| {row['what']} | {rate['full']:.0f} | {rate['minimal']:.0f} | {row['throughput_ratio']:.2f} "
            f"(≥ {THROUGHPUT}) | {ours} | {theirs} | {row['p99_ratio_full_to_empty']:.2f} |"
        )
    return "\n".join(lines)


# --- servers ------------------------------------------------------------------------------------------------------


@contextmanager
def our_server(postgres: Postgres, title: str, rows: int) -> Iterator[Server]:
    """`python -m api` with that many finished jobs in its table."""
    url = postgres.create_database(title)
    database, pepper = Database(url), SecretStr("a pepper for a benchmark")
    migrate(database)
    key = create_key(database, OWNER, pepper)
    job, _ = service.submit(database, Principal(OWNER), parse_spec(SPEC), roots=[])
    database.dispose()
    fill(postgres, title, job.id, rows)
    ports = free_port(), free_port()
    with tempfile.TemporaryDirectory() as home:
        env = {
            "PPO_HOME": home,
            "PPO_DATABASE_URL": url,
            "PPO_KEY_PEPPER": pepper.get_secret_value(),
            "PPO_RATE_LIMIT_PER_SECOND": "0",
            "PPO_MAX_QUEUED_JOBS": "1000000",
            "PPO_HTTP_PORT": str(ports[0]),
            "PPO_GRPC_PORT": str(ports[1]),
        }
        with process([sys.executable, "-m", "api"], ports[0], "/readyz", env):
            yield Server(title, ports[0], {"Authorization": f"Bearer {key}"})


def fill(postgres: Postgres, database: str, job_id: str, rows: int) -> None:
    """Copy a job into finished ones, each with its event."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        copied = [
            name
            for (name,) in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = 'jobs'"
            )
        ]
        other = {"id": "'job_' || lpad(n::text, 26, '0')", "state": "'succeeded'", "end_time": "now()"}
        values = ", ".join(other.get(name, name) for name in copied)
        connection.execute(
            f"INSERT INTO jobs ({', '.join(copied)}) SELECT {values} "
            f"FROM jobs, generate_series(1, {rows}) AS n WHERE id = '{job_id}'".encode()
        )
        connection.execute(
            b"INSERT INTO job_events (job_id, seq, time, type, state, attempt, message, data) "
            b"SELECT id, 1, now(), 'submit', 'queued', 0, 'accepted', '{}' FROM jobs WHERE state = 'succeeded'"
        )
        connection.execute(b"VACUUM ANALYZE")


def drain(postgres: Postgres, database: str) -> None:
    """Empty the queue, as workers would: the place of a job in a queue of thousands is not what is measured."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("UPDATE jobs SET state = 'succeeded', end_time = now() WHERE state = 'queued'")


@contextmanager
def minimal_server(postgres: Postgres, rows: int) -> Iterator[Server]:
    """The yardstick, with as many rows."""
    title = "minimal"
    url, port = postgres.create_database(title), free_port()
    with process([sys.executable, "-m", "benchmarks.minimal_app", url, str(port)], port, "/openapi.json", {}):
        with psycopg.connect(postgres.dsn(title), autocommit=True) as connection:
            connection.execute(
                "INSERT INTO documents (id, name, state, body, create_time) SELECT 'd' || n, 'd', 'succeeded', "
                f"%s::jsonb, now() FROM generate_series(1, {rows}) AS n".encode(),
                [json.dumps(parse_spec(SPEC).document())],
            )
            connection.execute(b"VACUUM ANALYZE")
        yield Server(title, port)


@contextmanager
def process(command: list[str], port: int, path: str, env: Mapping[str, str]) -> Iterator[None]:
    """A server for as long as the block lasts; its output is thrown away, as is a log's that nobody reads."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PPO_")}
    with subprocess.Popen(
        command, cwd=REPOSITORY, env={**inherited, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_until(lambda: answers(port, path), 120, lambda: f"{command} does not answer")
            yield
        finally:
            server.terminate()
            server.wait()


def answers(port: int, path: str) -> bool:
    """Whether a server is there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    main()
