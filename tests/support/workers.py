"""Workers as processes, with a scripted engine, and jobs for them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jobs import service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.spec import JobSpec
from jobs.states import JobState
from jobs.views import JobView
from ppo_engine.rundir import RunDir
from tests.support.servers import wait_until
from tests.support.specs import make_spec
from worker.settings import WorkerSettings

SCRIPTED_ENGINE = Path(__file__).with_name("scripted_engine.py")
ENGINE_COMMAND = [sys.executable, str(SCRIPTED_ENGINE)]

QUICK: dict[str, Any] = {
    "engine_command": ENGINE_COMMAND,
    "engine_threads": 1,
    "warm_engine": False,
    "poll_seconds": 0.2,
    "lease_seconds": 4.0,
    "fence_seconds": 3.0,
    "heartbeat_seconds": 0.3,
    "reap_seconds": 0.5,
    "grace_seconds": 1.0,
    "presence_seconds": 0.5,
}
"""Settings of a worker for tests: everything that takes time takes little."""

LONG_LEASE = {"lease_seconds": 60.0, "fence_seconds": 40.0}
"""Where no worker is lost, so that a slow machine does not look like one that loses them."""


def quick_settings(home: Path, database_url: str, **changed: Any) -> WorkerSettings:
    """Settings of a worker inside the test process."""
    return WorkerSettings(home=home, database_url=database_url, **{**QUICK, **changed})


def script_spec(*, steps: int = 6, overrides: dict[str, Any] | None = None, **script: Any) -> JobSpec:
    """A job for the scripted engine."""
    return make_spec(
        **{
            "prompts": {"inline": [json.dumps(script)]},
            "ppo__steps": steps,
            "checkpoint": {"every_steps": 2, "keep_last": 2},
            **(overrides or {}),
        }
    )


def submit_script(db: Database, **options: Any) -> str:
    """Submit such a job; returns its id."""
    spec = script_spec(**options)
    job, created = service.submit(db, LOCAL, spec, roots=[])
    assert created
    return job.id


def wait_for_state(db: Database, job_id: str, *states: JobState, seconds: float = 60.0) -> JobView:
    """Wait until the job is in one of the states, by default a terminal one."""
    wanted = states or (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    seen: list[JobView] = []

    def arrived() -> bool:
        seen[:] = [service.get(db, LOCAL, job_id)]
        return seen[0].state in wanted

    wait_until(arrived, seconds, lambda: f"the job is {seen[0].state} at step {seen[0].progress.step}: {seen[0].error}")
    return seen[0]


def wait_for_step(db: Database, job_id: str, step: int, seconds: float = 60.0) -> None:
    """Wait until a step is recorded."""
    wait_until(
        lambda: service.get(db, LOCAL, job_id).progress.step >= step, seconds, lambda: f"step {step} does not come"
    )


def event_types(db: Database, job_id: str) -> list[str]:
    """What happened to the job, in order."""
    return [event.type for event in service.events(db, LOCAL, job_id)]


def final_weights(run_dir: RunDir) -> str:
    """The scripted engine's weights in the newest checkpoint."""
    state = json.loads((run_dir.saved_checkpoints()[0] / "state.json").read_text())
    return str(state["weights"])


def weights_after(steps: int) -> str:
    """Where the scripted engine ends when nothing disturbs it."""
    weights = ""
    for step in range(1, steps + 1):
        weights = hashlib.sha256(f"{weights}{step}".encode()).hexdigest()
    return weights


def engine_pids(run_dir: RunDir) -> list[int]:
    """Processes whose command line names the run directory."""
    wanted = str(run_dir.root).encode()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and wanted in _command_line(entry) and not process_is_gone(int(entry.name))
    ]


def process_is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped by its parent counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class Stack:
    """One installation: a home folder, a database, a broker, and the processes that were started on it."""

    home: Path
    database_url: str
    broker_url: str = "memory://"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.db = Database(self.database_url)

    @property
    def database(self) -> str:
        """What people call the kind of the database."""
        return "SQLite" if self.database_url.startswith("sqlite") else "PostgreSQL"

    def run_dir(self, job_id: str) -> RunDir:
        """The run directory of a job."""
        return RunDir(self.home / "runs" / job_id)

    def start_worker(self, **changed: Any) -> subprocess.Popen[bytes]:
        """`python -m worker` with quick settings; its log goes to a file in the home folder."""
        return self.start(["-m", "worker"], changed)

    def start_relay(self, **changed: Any) -> subprocess.Popen[bytes]:
        """`python -m worker.relay`."""
        return self.start(["-m", "worker.relay"], changed)

    def start(self, arguments: Sequence[str], changed: dict[str, Any]) -> subprocess.Popen[bytes]:
        """A process of the service with this installation's environment."""
        settings = {"home": self.home, "database_url": self.database_url, "broker_url": self.broker_url}
        with (self.home / f"process-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], env=_environment({**QUICK, **settings, **changed}), stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def logs(self) -> str:
        """What all processes have written, for a failing test's message."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.glob("process-*.log")))

    def close(self) -> None:
        """End every process, stopped ones too, and the engines they leave."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self.db.dispose()


def freeze(process: subprocess.Popen[bytes], installed: Stack) -> None:
    """Stop the process where it holds no lock of the database: it would keep everybody waiting until it thaws."""
    while True:
        process.send_signal(signal.SIGSTOP)
        # It goes on for a moment, in which it could lock what was free a moment ago.
        wait_until(lambda: _stands_still(process.pid), 60, installed.logs)
        if not _anything_is_locked(installed):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.02)


def _stands_still(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


def _anything_is_locked(installed: Stack) -> bool:
    url = sa.make_url(installed.database_url)
    sqlite = url.get_backend_name() == "sqlite"
    engine = sa.create_engine(url, connect_args={"timeout": 0.2} if sqlite else {}, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "SELECT id FROM jobs FOR UPDATE NOWAIT")
            connection.rollback()
    except sa.exc.OperationalError:
        return True
    return False


@contextmanager
def stack(home: Path, database_url: str, broker_url: str = "memory://") -> Iterator[Stack]:
    """An installation that leaves no process behind."""
    home.mkdir(exist_ok=True)
    installed = Stack(home, database_url, broker_url)
    try:
        yield installed
    finally:
        installed.close()


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PPO_")}
    return {**inherited, **{f"PPO_{name.upper()}": _text(value) for name, value in settings.items()}}


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list) else str(value)
