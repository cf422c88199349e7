"""Pause, stop and fork as the supervisor does them: a real engine process, a real database."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.forking import ForkRequest, fork
from jobs.states import JobState
from tests.support.bench import Bench, error_of
from tests.support.invariants import check_invariants
from tests.support.workers import (
    event_types,
    final_weights,
    submit_script,
    wait_for_state,
    wait_for_step,
    weights_after,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path) -> Iterator[Bench]:
    db = Database(sqlite_url)
    yield Bench(db, tmp_path)
    db.dispose()


def test_a_pause_ends_with_a_checkpoint_and_the_resumed_run_as_if_there_had_been_none(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=40, step_seconds=0.15)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    service.pause(bench.db, LOCAL, job_id)
    thread.join(60)
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.attempt) == (JobState.PAUSED, "user_pause", 1)
    assert 3 <= job.progress.step == job.last_checkpoint_step < 40
    service.resume(bench.db, LOCAL, job_id)
    bench.run()
    assert bench.job(job_id).state is JobState.SUCCEEDED
    assert final_weights(bench.run_dir(job_id)) == weights_after(40)
    check_invariants(bench.db, ended=True)


def test_a_pause_of_an_engine_that_does_not_listen_costs_only_what_is_not_saved(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=10_000, fault="ignore_stop", at=2)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    service.pause(bench.db, LOCAL, job_id)
    thread.join(60)
    job = bench.job(job_id)
    assert (job.state, job.last_checkpoint_step, job.error) == (JobState.PAUSED, 2, None)
    assert "is lost" in service.events(bench.db, LOCAL, job_id)[-1].message


def test_a_stop_ends_well_with_a_checkpoint_of_the_last_step(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=10_000, step_seconds=0.05)
    thread = bench.start()
    wait_for_state(bench.db, job_id, JobState.RUNNING)
    service.stop(bench.db, LOCAL, job_id)  # before the first step: that one is waited for
    thread.join(60)
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.error) == (JobState.SUCCEEDED, "user_stop", None)
    assert 1 <= job.progress.step == job.last_checkpoint_step
    check_invariants(bench.db, ended=True)


def forked(db: Database, job_id: str, from_step: int, **overrides: Any) -> str:
    return fork(db, LOCAL, job_id, ForkRequest(from_step=from_step, overrides=overrides), roots=[])[0].id


def test_a_fork_goes_on_from_the_other_runs_checkpoint_and_ends_where_that_would_have(
    database: Database, tmp_path: Path
) -> None:
    bench = Bench(database, tmp_path)
    parent = submit_script(database)
    bench.run()
    child = forked(database, parent, 4, ppo={"steps": 9})
    bench.run()
    job = bench.job(child)
    assert (job.state, job.progress.step, job.parent and job.parent.step) == (JobState.SUCCEEDED, 9, 4), job.error
    assert service.metrics(database, LOCAL, child).steps == [5, 6, 7, 8, 9]
    assert final_weights(bench.run_dir(child)) == weights_after(9)
    assert final_weights(bench.run_dir(parent)) == weights_after(6)
    assert "inherited" in event_types(database, child)
    check_invariants(database, ended=True)


def test_a_fork_that_crashes_begins_again_with_what_it_took_over(bench: Bench) -> None:
    parent = submit_script(bench.db)
    bench.run()
    script = json.dumps({"fault": "exit_7", "at": 5, "always": True})
    own = {"prompts": {"inline": [script]}, "checkpoint": {"every_steps": 6}, "retry": {"max_attempts": 2}}
    child = forked(bench.db, parent, 4, **own)
    bench.run()
    shutil.rmtree(bench.run_dir(parent).root)
    bench.run()
    job = bench.job(child)
    assert (job.state, error_of(job)["code"], job.last_checkpoint_step) == (JobState.FAILED, "engine_crashed", 4)
    first, second = reversed(service.attempts(bench.db, LOCAL, child).items)
    assert (first.from_step, second.from_step) == (4, 4)
    check_invariants(bench.db, ended=True)


def test_a_fork_of_a_checkpoint_that_is_gone_fails_and_says_so(bench: Bench) -> None:
    parent = submit_script(bench.db)
    bench.run()
    gone, altered = forked(bench.db, parent, 4), forked(bench.db, parent, 6, ppo={"steps": 9})
    shutil.rmtree(bench.run_dir(parent).checkpoint(4, 1))
    (bench.run_dir(parent).checkpoint(6, 1) / "manifest.json").write_text("{}")
    for child in (gone, altered):
        bench.run()
        assert error_of(bench.job(child))["code"] == "parent_checkpoint_gone"
        assert not list(bench.run_dir(child).checkpoints.glob("step-*"))
    check_invariants(bench.db, ended=True)
