"""The real engine under killed workers: the last weights are bit for bit those of a run that nothing happened to."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.spec import parse_spec
from tests.support.fault_runs import holders, settle
from tests.support.fault_table import chance, row
from tests.support.servers import wait_until
from tests.support.source_tree import ROOT
from tests.support.stale_writes import watch
from tests.support.workers import Stack, engine_pids, process_is_gone, stack, wait_for_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MODELS = ROOT / "examples" / "models"
STEPS = 12
KILLS = 4
ENGINE = {
    "engine_command": [sys.executable, "-m", "ppo_engine"],
    "model_roots": MODELS,
    "lease_seconds": 2.5,
    "fence_seconds": 2.0,
    "grace_seconds": 30,
}


def submit(installed: Stack) -> str:
    spec: dict[str, Any] = json.loads((ROOT / "examples" / "specs" / "austen-positive.json").read_text())
    spec |= {
        "ppo": {"steps": STEPS, "batch_size": 8, "minibatch_size": 4, "ppo_epochs": 2},
        "checkpoint": {"every_steps": 1, "keep_last": 2},
        "logging": {"tensorboard": False, "samples_per_step": 1},
        "retry": {"max_attempts": 100},
    }
    return service.submit(installed.db, LOCAL, parse_spec(spec), roots=[MODELS])[0].id


def weights(installed: Stack, job_id: str) -> dict[str, str]:
    """Digests of all tensors of the last checkpoint: policy, value head, optimizer."""
    (last, *_) = installed.run_dir(job_id).saved_checkpoints()
    files = json.loads((last / "manifest.json").read_text())["files"]
    return {name: facts["sha256"] for name, facts in files.items() if name.endswith(".safetensors")}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_killed_workers_leave_the_weights_as_they_would_have_been(
    request: pytest.FixtureRequest, database: str, tmp_path: Path
) -> None:
    with stack(tmp_path / "home", request.getfixturevalue(f"{database}_url")) as installed:
        watch(installed.db)
        table, dice = row(f"worker killed, real engine, {installed.database}"), chance(f"real {database}")
        engines = row(f"supervisor killed: the real engine ends, {installed.database}")
        undisturbed, disturbed = submit(installed), submit(installed)
        worker = installed.start_worker(worker_id="w0", **ENGINE)
        wait_for_state(installed.db, undisturbed, seconds=300)
        while table.injected < KILLS and not service.get(installed.db, LOCAL, disturbed).done:
            seen = service.get(installed.db, LOCAL, disturbed)
            wait_until(lambda seen=seen: has_moved(installed, disturbed, seen.progress.step), 120, installed.logs)
            time.sleep(dice.uniform(0, 0.5))
            if not holders(installed.db):
                continue
            orphans = engine_pids(installed.run_dir(disturbed))
            worker.kill()
            worker.wait()
            began = time.monotonic()
            table.injected += 1
            attempt = service.get(installed.db, LOCAL, disturbed).attempt
            worker = installed.start_worker(worker_id=f"w{table.injected}", **ENGINE)
            wait_until(lambda orphans=orphans: all(map(process_is_gone, orphans)), 60, lambda: "an orphan trains on")
            engines.recovery_seconds.append(time.monotonic() - began)
            engines.injected += len(orphans)
            wait_until(lambda attempt=attempt: claimed_after(installed, disturbed, attempt), 120, installed.logs)
            table.recovery_seconds.append(time.monotonic() - began)
        settle(installed, [undisturbed, disturbed], table, once=False, seconds=300)
        engines.jobs, engines.stale = table.jobs, table.stale
        assert table.injected > 0
        assert len(weights(installed, disturbed)) > 1
        assert weights(installed, disturbed) == weights(installed, undisturbed)


def has_moved(installed: Stack, job_id: str, step: int) -> bool:
    """Whether a further step and a checkpoint are recorded, or all is over."""
    job = service.get(installed.db, LOCAL, job_id)
    return job.done or (job.progress.step > step and job.last_checkpoint_step is not None)


def claimed_after(installed: Stack, job_id: str, attempt: int) -> bool:
    job = service.get(installed.db, LOCAL, job_id)
    return job.done or job.attempt > attempt
