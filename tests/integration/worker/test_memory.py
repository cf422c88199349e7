"""Memory runs out: once with half the microbatch, and then with the reason. Real engines under a real limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jobs import lifecycle, service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.states import JobState
from jobs.views import JobError, JobView
from ppo_engine.config import TrainConfig
from ppo_engine.rundir import RunDir
from tests.support.invariants import check_invariants
from tests.support.specs import make_spec
from tests.support.tiny_models import tiny_llama
from tests.support.workers import event_types, final_weights, quick_settings, submit_script, weights_after
from worker.gauges import Gauges
from worker.lease import now
from worker.shutdown import Shutdown
from worker.supervisor import Supervisor

pytestmark = pytest.mark.slow

LITTLE_MEMORY = Path(__file__).parents[2] / "support" / "little_memory.py"
FITS_HALF = 540
"""MiB above the imports. The run below takes 650 with microbatches of 64 and 440 with 32."""
WIDE = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16384}

FITS_HALF_OF_THE_RESPONSES = 530
"""The same, where what is held of running responses is most: 540 for all 64 of them."""
LONG_MEMORY = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4096}


def attempt(db: Database, home: Path, **settings: Any) -> None:
    """Claim the next job and supervise it to the end of the attempt."""
    sent_at = now()
    quick = quick_settings(home, "sqlite:///unused.db", **settings)
    claim = lifecycle.claim(db, worker_id="bench", queues=["default"], lease_seconds=quick.lease_seconds)
    assert claim is not None, "nothing to claim"
    Supervisor(claim, claimed_at=sent_at, db=db, settings=quick, gauges=Gauges(), shutdown=Shutdown()).run()


def job_of(db: Database, job_id: str) -> JobView:
    return service.get(db, LOCAL, job_id)


def halvings(db: Database, job_id: str) -> list[dict[str, Any]]:
    return [event.data for event in service.events(db, LOCAL, job_id) if event.type == "microbatch_halved"]


def test_a_real_engine_out_of_memory_ends_well_with_half_the_microbatch(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    tiny_llama(tmp_path / "models" / "wide", **WIDE)
    spec = make_spec(
        model={"policy": {"path": "wide"}},
        prompts={"inline": ["It", "We"]},
        rewards=[{"name": "length", "rule": {"name": "length", "params": {"target": 3}}}],
        generation={"max_new_tokens": 16, "min_new_tokens": 16},
        ppo={"steps": 1, "batch_size": 128, "microbatch_size": 64, "ppo_epochs": 1},
        logging={"tensorboard": False},
        retry={"max_attempts": 1},
    )
    models = tmp_path / "models"
    job_id = service.submit(database, LOCAL, spec, roots=[models])[0].id
    little = {"engine_command": [sys.executable, str(LITTLE_MEMORY), str(FITS_HALF)], "model_roots": [models]}
    attempt(database, tmp_path, **little)
    job = job_of(database, job_id)
    assert job.state is JobState.QUEUED, job.error
    assert job.error is not None
    assert (job.error.code, job.microbatch_size) == ("out_of_memory", 32), job.error
    attempt(database, tmp_path, **little)
    job = job_of(database, job_id)
    assert job.state is JobState.SUCCEEDED, job.error
    assert (job.attempt, job.microbatch_size, job.error) == (2, 32, None)
    assert job.spec["ppo"]["microbatch_size"] == 64, "the spec stays as it was submitted"
    assert halvings(database, job_id) == [{"before": 64, "after": 32}]
    run = RunDir(tmp_path / "runs" / job_id)
    assert TrainConfig.model_validate_json(run.spec.read_bytes()).ppo.microbatch_size == 32
    check_invariants(database, ended=True)
    database.dispose()


def test_a_real_engine_out_of_memory_while_it_samples_ends_well_in_two_turns(sqlite_url: str, tmp_path: Path) -> None:
    """Its microbatches are of one sequence, and cannot be halved."""
    db, models = Database(sqlite_url), tmp_path / "models"
    tiny_llama(models / "long", num_hidden_layers=1, intermediate_size=32, **LONG_MEMORY)
    spec = make_spec(
        model={"policy": {"path": "long"}},
        prompts={"inline": ["It", "We"]},
        rewards=[{"name": "length", "rule": {"name": "length", "params": {"target": 3}}}],
        generation={"max_new_tokens": 64, "min_new_tokens": 64},
        ppo={"steps": 1, "batch_size": 64, "microbatch_size": 1, "ppo_epochs": 1},
        resources={"threads": 1},
        logging={"tensorboard": False},
        retry={"max_attempts": 1},
    )
    job_id = service.submit(db, LOCAL, spec, roots=[models])[0].id
    command = [sys.executable, str(LITTLE_MEMORY), str(FITS_HALF_OF_THE_RESPONSES)]
    attempt(db, tmp_path, engine_command=command, model_roots=[models])
    job = job_of(db, job_id)
    assert job.error is not None
    assert (job.state, job.error.code, job.error.phase) == (JobState.QUEUED, "out_of_memory", "rollout"), job.error
    attempt(db, tmp_path, engine_command=command, model_roots=[models])
    job = job_of(db, job_id)
    assert (job.state, job.attempt, job.microbatch_size) == (JobState.SUCCEEDED, 2, 1), job.error
    assert halvings(db, job_id) == [{"before": 1, "after": 1}]
    check_invariants(db, ended=True)
    db.dispose()


def test_it_goes_on_from_its_checkpoint_and_no_attempt_is_charged(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    job_id = submit_script(db, fault="no_memory", at=3, overrides={"retry": {"max_attempts": 1}})
    attempt(db, tmp_path)
    attempt(db, tmp_path)
    job = job_of(db, job_id)
    assert (job.state, job.attempt, job.microbatch_size) == (JobState.SUCCEEDED, 2, 1), job.error
    assert final_weights(RunDir(tmp_path / "runs" / job_id)) == weights_after(6)
    assert service.metrics(db, LOCAL, job_id).steps == [1, 2, 3, 4, 5, 6]
    assert event_types(db, job_id).count("started") == 2
    check_invariants(db, ended=True)
    db.dispose()


@pytest.mark.parametrize(("microbatch", "attempts", "tried"), [(1, 1, "cannot be halved"), (4, 2, "of 2 sequences")])
def test_where_halving_does_not_help_it_fails_with_reason_and_advice(
    sqlite_url: str, tmp_path: Path, microbatch: int, attempts: int, tried: str
) -> None:
    db = Database(sqlite_url)
    smaller = {"ppo__minibatch_size": 4, "ppo__microbatch_size": microbatch}
    job_id = submit_script(db, fault="no_memory", at=3, always=True, overrides=smaller)
    for _ in range(attempts):
        attempt(db, tmp_path)
    job = job_of(db, job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, attempts)
    assert job.error is not None
    assert (job.error.code, job.error.category) == ("out_of_memory", "capacity")
    assert "can't allocate" in job.error.message
    assert tried in job.error.message
    assert job.error.suggestion
    assert len(halvings(db, job_id)) == attempts - 1
    check_invariants(db, ended=True)
    db.dispose()


def test_the_owners_cancel_outranks_the_halving(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    job_id = submit_script(db)
    held = lifecycle.claim(db, worker_id="w", queues=["default"], lease_seconds=60)
    assert held is not None
    service.cancel(db, LOCAL, job_id)
    error = JobError(code="out_of_memory", category="capacity", message="no memory", attempt=1)
    lifecycle.halve_microbatch(db, held.lease, error=error, before=4, after=2)
    assert job_of(db, job_id).state is JobState.CANCELLED
    check_invariants(db, ended=True)
    db.dispose()
