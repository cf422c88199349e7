"""One attempt at a time, supervised inside the test: a real engine process, a real database, no Celery."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs import lifecycle, service
from jobs.auth import LOCAL
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.states import JobState
from jobs.tables import Job
from tests.support.bench import Bench, error_of
from tests.support.invariants import check_invariants
from tests.support.servers import wait_until
from tests.support.workers import (
    engine_pids,
    event_types,
    final_weights,
    submit_script,
    wait_for_state,
    wait_for_step,
    weights_after,
)
from worker.shutdown import Shutdown
from worker.supervisor import Supervisor

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path) -> Iterator[Bench]:
    db = Database(sqlite_url)
    yield Bench(db, tmp_path)
    db.dispose()


def test_a_job_from_claim_to_success(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    job_id = submit_script(database)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.progress.step, job.attempt) == (JobState.SUCCEEDED, "completed", 6, 1)
    assert service.metrics(database, LOCAL, job_id).steps == [1, 2, 3, 4, 5, 6]
    assert [view.step for view in service.checkpoints(database, LOCAL, job_id).items] == [4, 6]
    assert sorted(path.name for path in bench.run_dir(job_id).checkpoints.iterdir()) == [
        "step-00000004-1",
        "step-00000006-1",
    ]
    assert event_types(database, job_id)[:3] == ["submitted", "claimed", "started"]
    assert event_types(database, job_id)[-1] == "succeeded"
    assert json.loads(bench.run_dir(job_id).spec.read_text())["ppo"]["steps"] == 6
    assert bench.attempts("succeeded") == 1
    assert engine_pids(bench.run_dir(job_id)) == []


def test_a_crash_resumes_from_the_last_checkpoint_and_ends_where_it_would_have(
    database: Database, tmp_path: Path
) -> None:
    bench = Bench(database, tmp_path)
    crashed = submit_script(database, fault="exit_7", at=3)
    bench.run()
    assert bench.job(crashed).state is JobState.QUEUED
    bench.run()
    job = bench.job(crashed)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
    assert job.error is None
    assert final_weights(bench.run_dir(crashed)) == weights_after(6)
    assert service.metrics(database, LOCAL, crashed).steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fault", "code", "how"),
    [
        ("exit_7", "engine_crashed", {"exit_code": 7, "signal": None, "category": "internal"}),
        ("segfault", "engine_crashed", {"signal": "SIGSEGV", "exit_code": None}),
        ("sigkill", "engine_killed", {"signal": "SIGKILL", "category": "infra"}),
    ],
)
def test_a_job_that_always_crashes_fails_when_its_attempts_are_used_up(
    bench: Bench, fault: str, code: str, how: dict[str, Any]
) -> None:
    job_id = submit_script(bench.db, fault=fault, at=3, always=True, overrides={"retry": {"max_attempts": 2}})
    bench.run()
    bench.run()
    job = bench.job(job_id)
    error = error_of(job)
    assert (job.state, job.attempt, error["code"], error["attempt"], error["step"]) == (JobState.FAILED, 2, code, 2, 3)
    assert how.items() <= error.items()


@pytest.mark.parametrize(
    ("fault", "code", "category"),
    [
        ("non_finite", "non_finite", "config"),
        ("garbage", "engine_protocol", "internal"),
        ("nan", "engine_protocol", "internal"),
        ("exit_0", "engine_protocol", "internal"),
        ("finish_without_checkpoint", "engine_protocol", "internal"),
    ],
)
def test_an_error_that_a_retry_cannot_help_fails_at_once(bench: Bench, fault: str, code: str, category: str) -> None:
    job_id = submit_script(bench.db, fault=fault, at=3)
    bench.run()
    job = bench.job(job_id)
    error = error_of(job)
    assert (job.state, job.attempt, error["code"], error["category"]) == (JobState.FAILED, 1, code, category)
    assert job.last_checkpoint_step == 2, "what was saved is kept"
    assert engine_pids(bench.run_dir(job_id)) == []


def test_the_log_tail_is_in_the_error_and_its_secrets_are_not(bench: Bench) -> None:
    job_id = submit_script(bench.db, fault="exit_7", at=1, overrides={"retry": {"max_attempts": 1}})
    bench.run()
    tail = error_of(bench.job(job_id))["log_tail"]
    assert "something went wrong here" in tail
    log = bench.run_dir(job_id).log(1).read_text()
    assert "something went wrong here" in log
    assert "hf_abcdefghijklmnop" not in tail + log


def test_a_hang_is_ended_with_its_stacks_in_the_log(bench: Bench) -> None:
    bench.settings = {"silence_seconds": 0.5}
    job_id = submit_script(bench.db, fault="hang", at=3, overrides={"retry": {"max_attempts": 1}})
    bench.run()
    error = error_of(bench.job(job_id))
    assert error["code"] == "engine_hung"
    assert "_hang" in bench.run_dir(job_id).log(1).read_text()


def test_a_hang_while_loading_has_a_limit_of_its_own(bench: Bench) -> None:
    bench.settings = {"silence_seconds": 60, "loading_seconds": 0.5}
    job_id = submit_script(bench.db, fault="hang", at=-1, overrides={"retry": {"max_attempts": 1}})
    bench.run()
    assert error_of(bench.job(job_id))["code"] == "engine_hung"


def test_an_engine_that_does_not_leave_after_its_end_is_killed(bench: Bench) -> None:
    job_id = submit_script(bench.db, fault="linger_after_finish", at=6)
    bench.run()
    assert bench.job(job_id).state is JobState.SUCCEEDED
    assert engine_pids(bench.run_dir(job_id)) == []


def test_cancel_ends_with_a_checkpoint(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=10_000, step_seconds=0.05)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    service.cancel(bench.db, LOCAL, job_id)
    thread.join(60)
    job = bench.job(job_id)
    assert (job.state, job.error) == (JobState.CANCELLED, None)
    assert job.last_checkpoint_step == job.progress.step


def test_cancel_kills_an_engine_that_does_not_listen(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=10_000, fault="ignore_stop", at=2)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    service.cancel(bench.db, LOCAL, job_id)
    thread.join(60)
    assert bench.job(job_id).state is JobState.CANCELLED
    assert engine_pids(bench.run_dir(job_id)) == []


def test_the_run_time_is_limited_and_the_checkpoint_kept(bench: Bench) -> None:
    limited = {"resources": {"max_runtime_seconds": 1}}
    job_id = submit_script(bench.db, steps=10_000, step_seconds=0.05, overrides=limited)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, error_of(job)["code"]) == (JobState.FAILED, "max_runtime_exceeded")
    assert job.last_checkpoint_step == job.progress.step > 0


def test_a_shutdown_gives_the_job_back_without_charging(bench: Bench) -> None:
    job_id = submit_script(bench.db, steps=60, step_seconds=0.05, overrides={"retry": {"max_attempts": 1}})
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    bench.shutdown.request()
    thread.join(60)
    job = bench.job(job_id)
    assert job.state is JobState.QUEUED, "with one attempt allowed, a charged one would have failed it"
    assert job.last_checkpoint_step is not None
    bench.shutdown = Shutdown()
    bench.run()
    assert bench.job(job_id).state is JobState.SUCCEEDED


def test_a_second_request_does_not_wait(bench: Bench) -> None:
    bench.settings = {"grace_seconds": 60}
    job_id = submit_script(bench.db, steps=10_000, fault="ignore_stop", at=2)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    bench.shutdown.request()
    bench.shutdown.request()
    thread.join(60)
    assert not thread.is_alive()
    assert bench.job(job_id).state is JobState.QUEUED


def test_a_damaged_checkpoint_is_forgotten_and_the_one_before_is_used(bench: Bench) -> None:
    job_id = submit_script(bench.db, fault="exit_7", at=5)
    bench.run()
    newest = bench.run_dir(job_id).saved_checkpoints()[0]
    assert newest.name == "step-00000004-1"
    (newest / "state.json").write_text("{}")
    bench.run()
    assert bench.job(job_id).last_checkpoint_step == 2
    assert (newest.parent / ".corrupt-step-00000004-1").is_dir()
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.progress.step) == (JobState.SUCCEEDED, 6)
    assert service.metrics(bench.db, LOCAL, job_id).steps == [1, 2, 3, 4, 5, 6]


def test_an_engine_that_cannot_be_started_is_an_error_of_the_machine(bench: Bench) -> None:
    bench.settings = {"engine_command": ["/nonexistent/engine"]}
    job_id = submit_script(bench.db, overrides={"retry": {"max_attempts": 1}})
    bench.run()
    error = error_of(bench.job(job_id))
    assert (error["code"], error["category"]) == ("engine_not_started", "infra")
    assert "No such file" in error["message"]


def test_another_attempt_ends_this_one_without_a_word(bench: Bench) -> None:
    """The job is taken away behind the supervisor's back, as the reaper does after a long pause."""
    job_id = submit_script(bench.db, steps=10_000, fault="ignore_stop", at=2)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    lease = lifecycle.Lease(job_id, token=1, attempt=1)
    lifecycle.requeue(bench.db, lease, error=None, charge=False)
    before = event_types(bench.db, job_id)
    thread.join(60)
    assert not thread.is_alive()
    assert event_types(bench.db, job_id) == before
    assert engine_pids(bench.run_dir(job_id)) == []
    assert bench.attempts("lost", "lease_lost") == 1


class Outage:
    """A database that is away for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, db: Database) -> None:
        self.on = False
        real: Callable[[], Any] = db.transaction

        def transaction() -> Any:
            if self.on:
                raise Unavailable("the database cannot be reached")
            return real()

        monkeypatch.setattr(db, "transaction", transaction)


def test_a_short_outage_of_the_database_is_not_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, bench.db)
    job_id = submit_script(bench.db, steps=40, step_seconds=0.05)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 2)
    pids = engine_pids(bench.run_dir(job_id))
    outage.on = True
    time.sleep(0.8)
    assert engine_pids(bench.run_dir(job_id)) == pids, "the engine trains on"
    outage.on = False
    thread.join(60)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert service.metrics(bench.db, LOCAL, job_id).steps == list(range(1, 41))


def test_a_long_outage_ends_the_engine_before_the_lease_does(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.settings = {"lease_seconds": 4.0, "fence_seconds": 3.0}
    outage = Outage(monkeypatch, bench.db)
    job_id = submit_script(bench.db, steps=10_000, step_seconds=0.05, overrides={"retry": {"max_attempts": 1}})
    thread = bench.start()
    wait_for_step(bench.db, job_id, 3)
    outage.on = True
    wait_until(lambda: not engine_pids(bench.run_dir(job_id)), 60, lambda: "the engine was not fenced")
    outage.on = False
    thread.join(60)
    job = wait_for_state(bench.db, job_id, JobState.QUEUED)
    assert job.error is None, "given back, and not charged"


def succeeded_by_another(bench: Bench, job_id: str, first: Supervisor) -> list[str]:
    """Let the lease of the first pass, and another end the job; returns the checkpoints."""
    with bench.db.transaction() as session:
        session.execute(sa.update(Job).values(lease_expire_time=db_time(-1)))
    assert lifecycle.reap(bench.db) == [job_id]
    bench.run()
    first.run()
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == (JobState.SUCCEEDED, 2)
    check_invariants(bench.db)
    return sorted(path.name for path in bench.run_dir(job_id).checkpoints.iterdir())


def test_whoever_comes_late_takes_no_checkpoint_of_a_successor_away(database: Database, tmp_path: Path) -> None:
    """Stopped between the claim and the first look at the run's directory, and sure of its lease a moment before."""
    bench = Bench(database, tmp_path)
    job_id = submit_script(database)
    kept = succeeded_by_another(bench, job_id, bench.take())
    assert {"step-00000004-2", "step-00000006-2"} <= set(kept)
    assert final_weights(bench.run_dir(job_id)) == weights_after(6)


def test_whoever_is_not_sure_of_the_lease_starts_nothing(bench: Bench) -> None:
    job_id = submit_script(bench.db)
    late = bench.take()
    late.keeper._renewed_at -= 60
    assert succeeded_by_another(bench, job_id, late) == ["step-00000004-2", "step-00000006-2"]
    assert not bench.run_dir(job_id).log(1).exists()


def test_an_end_that_cannot_be_written_yet_is_written_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, bench.db)
    job_id = submit_script(bench.db, steps=4, step_seconds=0.05)
    thread = bench.start()
    wait_for_step(bench.db, job_id, 1)
    outage.on = True
    wait_until(lambda: not engine_pids(bench.run_dir(job_id)), 60, lambda: "the engine does not end")
    outage.on = False
    thread.join(60)
    assert bench.job(job_id).state is JobState.SUCCEEDED


def test_a_guards_pause_waits_at_its_checkpoint_until_it_is_resumed(database: Database, tmp_path: Path) -> None:
    bench = Bench(database, tmp_path)
    job_id = submit_script(database, fault="pause", at=3)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.last_checkpoint_step) == (JobState.PAUSED, "guard", 3)
    told = [(event.type, event.message) for event in service.events(database, LOCAL, job_id)]
    assert told[-1] == ("paused", "paused at step 3: env/reward_mean above 0.4")
    assert told[-3][0] == "guard"
    assert bench.attempts("paused") == 1
    service.resume(database, LOCAL, job_id)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.attempt) == (JobState.SUCCEEDED, "completed", 2)
    assert final_weights(bench.run_dir(job_id)) == weights_after(6)
    check_invariants(database, ended=True)


def test_a_run_that_ends_early_has_succeeded(bench: Bench) -> None:
    job_id = submit_script(bench.db, fault="stop_early", at=3)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.stop_reason, job.progress.step) == (JobState.SUCCEEDED, "early_stop", 3)
    assert service.events(bench.db, LOCAL, job_id)[-1].message == "ended early at step 3: early_stop"


@pytest.mark.parametrize("at", [3, 4])
def test_a_rollback_is_drawn_again(database: Database, tmp_path: Path, at: int) -> None:
    """From step 4 its checkpoint is void too, and is written again under the same name."""
    bench = Bench(database, tmp_path)
    job_id = submit_script(database, fault="roll_back", at=at)
    bench.run()
    job = bench.job(job_id)
    assert (job.state, job.progress.step, job.attempt) == (JobState.SUCCEEDED, 6, 1)
    assert event_types(database, job_id).count("rolled_back") == 1
    assert service.metrics(database, LOCAL, job_id).steps == [1, 2, 3, 4, 5, 6]
    assert [view.step for view in service.checkpoints(database, LOCAL, job_id).items] == [4, 6]
    assert len(bench.run_dir(job_id).saved_checkpoints()) == 2
    assert final_weights(bench.run_dir(job_id)) != weights_after(6)
    check_invariants(database, ended=True)


def test_a_checkpoint_written_again_after_a_rollback_outlives_a_slow_database(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database hears of the rollback when the run has long written the same steps again."""
    rollback = lifecycle.record_rollback

    def late(*arguments: Any) -> dict[str, str]:
        time.sleep(1.0)
        return rollback(*arguments)

    monkeypatch.setattr(lifecycle, "record_rollback", late)
    job_id = submit_script(bench.db, fault="roll_back", at=4, step_seconds=0.01)
    bench.run()
    assert bench.job(job_id).state is JobState.SUCCEEDED
    known = [view.step for view in service.checkpoints(bench.db, LOCAL, job_id).items]
    assert known == [4, 6]
    assert {int(path.name.split("-")[1]) for path in bench.run_dir(job_id).saved_checkpoints()} == {4, 6}


@pytest.mark.parametrize(
    ("fault", "at", "said"),
    [
        ("leap", 3, "step 7 of 6 after step 3"),
        ("skip", 3, "step 5 of 6 after step 3"),
        ("restart", 3, "a rollback to step 4 at step 3"),
        ("start_ahead", -1, "a start from step 2 at step 0"),
        ("start_again", 3, "a start from step 0 at step 3"),
        ("answer", 3, "no event `answered`"),
        ("speak_after_the_end", 6, "`step` after the end"),
        ("score_that_is_no_number", 3, "`step` has a value that cannot be stored"),
        ("part_that_is_no_number", 3, "`step` has a value that cannot be stored"),
        ("endless_checkpoint", 3, "`checkpoint` has a value that cannot be stored"),
    ],
)
def test_events_that_cannot_be_true_break_the_protocol(bench: Bench, fault: str, at: int, said: str) -> None:
    job_id = submit_script(bench.db, fault=fault, at=at, step_seconds=0)
    bench.run()
    job = bench.job(job_id)
    assert job.state is JobState.FAILED
    assert error_of(job)["code"] == "engine_protocol"
    assert said in error_of(job)["message"]
    check_invariants(bench.db, ended=True)


def test_an_evaluation_before_training_is_step_0(bench: Bench) -> None:
    job_id = submit_script(bench.db, evaluation=0.25)
    bench.run()
    found = service.metrics(bench.db, LOCAL, job_id, keys=["eval/reward_mean"])
    assert (found.steps[:2], found.series["eval/reward_mean"][:2]) == ([0, 1], [0.25, None])
    assert [row.score for row in service.samples(bench.db, LOCAL, job_id, evaluation=True).items] == [0.25]
    assert bench.job(job_id).state is JobState.SUCCEEDED
    check_invariants(bench.db, ended=True)


def test_the_best_checkpoint_is_kept_beside_the_newest(bench: Bench) -> None:
    checkpoint = {"every_steps": 1, "keep_last": 1, "keep_best": 1}
    job_id = submit_script(bench.db, overrides={"checkpoint": checkpoint}, scores=[0.0, 3.0, 1.0, 2.0, 0.5, 0.1])
    bench.run()
    job = bench.job(job_id)
    assert (job.best_checkpoint_step, job.last_checkpoint_step) == (2, 6)
    assert {int(path.name.split("-")[1]) for path in bench.run_dir(job_id).saved_checkpoints()} == {2, 6}
