"""A whole embedded service for tests: `ppo up` as a process, as a user runs it, with the small real language model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ppo_engine.rundir import RunDir

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "models"

# Short, so that a lost worker is noticed within a test. One thread, so that test processes do not spin on each other.
PACE = {
    "PPO_LEASE_SECONDS": "4",
    "PPO_FENCE_SECONDS": "3",
    "PPO_HEARTBEAT_SECONDS": "0.5",
    "PPO_REAP_SECONDS": "0.5",
    "PPO_ENGINE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # As at a user's: output to a pipe is buffered unless it is flushed.
    "PYTHONUNBUFFERED": "",
}


@dataclass(frozen=True)
class RunningService:
    """Where it is."""

    url: str
    grpc: str
    home: Path
    process: subprocess.Popen[str]

    def pid(self, module: str) -> int:
        """Process id of `api` or `worker` now."""
        return int(json.loads((self.home / "service.json").read_text())["pids"][module])

    def victim_pid(self, victim: str) -> int | None:
        """Process id of `api`, `worker`, or the `engine` that trains now."""
        if victim != "engine":
            return self.pid(victim)
        worker = self.pid("worker")
        engines = (pid for pid, parent, command in processes() if parent == worker and "ppo_engine" in command)
        return next((pid for pid in engines if not _waits(pid)), None)

    def wait_for_checkpoint(self, job_id: str) -> None:
        """Return as soon as the job has one: seen on the disk, because an API tells it a second or two later."""
        wait_for(lambda: RunDir(self.home / "runs" / job_id).saved_checkpoints())

    def ppo(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the `ppo` command against this service."""
        return run("-m", "ppo_client", *words, env={"PPO_URL": self.url}, **options)


def wait_for(condition: Callable[[], T | None], timeout_seconds: float = 90.0) -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def run(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, with its output."""
    environment = {**os.environ, "COLUMNS": "120", **(env or {})}
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False, **options)


def processes() -> list[tuple[int, int, str]]:
    """Process id, parent and command of every process that runs; zombies do not."""
    table = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=3) for line in table.stdout.splitlines()]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if not row[2].startswith("Z")]


def _waits(pid: int) -> bool:
    """Whether an engine's process has no job yet."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("ppo-imports", "ppo-waits")
    except OSError:
        return False


def command(home: Path) -> list[str]:
    """`ppo up` on free ports."""
    options = ["--home", str(home), "--http-port", "0", "--grpc-port", "0", "--model-root", str(MODELS), "--json"]
    return [sys.executable, "-m", "ppo_client.tether", "ppo_client", "up", *options]


@contextmanager
def embedded_service(home: Path, env: Mapping[str, str] | None = None) -> Iterator[RunningService]:
    """A service in `home` for as long as the block lasts; it dies with the tests, whatever happens to them."""
    errors = home.with_name(f"{home.name}.err")
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command(home),
            env={**os.environ, **PACE, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            ready = process.stdout.readline()
            assert ready, errors.read_text()
            places = json.loads(ready)
            yield RunningService(places["url"], places["grpc"], home, process)
        finally:
            process.terminate()
            process.wait(90)
