"""Pruning: what old, ended jobs lose, and what nobody may lose."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs import admin, retention
from jobs.clock import db_time
from jobs.db import Database
from jobs.lifecycle import succeed
from jobs.retention import Retention, prune
from jobs.service import checkpoints, events, get
from jobs.states import JobState
from jobs.tables import Errand, Job, JobCheckpoint, JobSample
from ppo_engine.rundir import RunDir
from tests.support.attempts import ANN, claimed, record_steps_and_checkpoint, submitted
from tests.support.invariants import check_invariants

MONTH = 30 * 86400.0
OLD = Retention(MONTH)


def a_run(db: Database, runs: Path, *, ended_days_ago: float | None, steps: int = 3) -> tuple[str, RunDir]:
    """A job with a checkpoint at every step, and what an engine leaves on disk."""
    job_id = submitted(db, checkpoint={"every_steps": 1, "keep_last": 10})
    held = claimed(db, job_id)
    run_dir = RunDir(runs / job_id)
    for step in range(1, steps + 1):
        record_steps_and_checkpoint(db, held, step, step)
    with db.read() as session:
        for row in session.scalars(sa.select(JobCheckpoint).where(JobCheckpoint.job_id == job_id)):
            write(run_dir.root / row.path / "model" / "weights", 1000)
    for name in ("engine-1.log", "engine-1.log.1", "samples.jsonl", "inspection/step-1/x", "exports/step-1/x"):
        write(run_dir.root / name, 100)
    for name in ("spec.json", "tensorboard/events"):
        write(run_dir.root / name, 10)
    if ended_days_ago is not None:
        succeed(db, held.lease)
        execute(db, sa.update(Job).where(Job.id == job_id).values(end_time=db_time(-ended_days_ago * 86400)))
    return job_id, run_dir


def write(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)


def execute(db: Database, statement: sa.Executable) -> None:
    with db.transaction() as session:
        session.execute(statement)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def sample_rows(db: Database, job_id: str) -> int:
    with db.read() as session:
        return session.scalar(sa.select(sa.func.count()).where(JobSample.job_id == job_id)) or 0


def test_an_old_job_keeps_its_story_and_loses_its_weight(database: Database, tmp_path: Path) -> None:
    job_id, run_dir = a_run(database, tmp_path, ended_days_ago=31)
    assert sample_rows(database, job_id) > 0
    told = events(database, ANN, job_id)
    removed = list(prune(database, tmp_path, OLD))
    assert files(run_dir.root) == {"spec.json", "tensorboard/events"}
    assert list(checkpoints(database, ANN, job_id).items) == []
    assert sample_rows(database, job_id) == 0
    job = get(database, ANN, job_id)
    assert (job.state, job.last_checkpoint_step, job.progress.step) == (JobState.SUCCEEDED, None, 3)
    assert events(database, ANN, job_id) == told
    assert sum(found.size_bytes for found in removed) == 3 * 1000 + 5 * 100
    check_invariants(database)
    assert list(prune(database, tmp_path, OLD)) == [], "the second time nothing is left to do"


def test_a_dry_run_tells_the_same_and_changes_nothing(database: Database, tmp_path: Path) -> None:
    job_id, _ = a_run(database, tmp_path, ended_days_ago=31)
    before = files(tmp_path), get(database, ANN, job_id), sample_rows(database, job_id)
    foretold = list(prune(database, tmp_path, Retention(MONTH, dry_run=True)))
    assert (files(tmp_path), get(database, ANN, job_id), sample_rows(database, job_id)) == before
    assert foretold == list(prune(database, tmp_path, OLD))
    assert len(foretold) == 3 + 5 + 1


def test_young_and_unfinished_jobs_are_left_alone(database: Database, tmp_path: Path) -> None:
    for days in (29, None):
        a_run(database, tmp_path, ended_days_ago=days)
    paused, _ = a_run(database, tmp_path, ended_days_ago=None)
    before = files(tmp_path)
    assert list(prune(database, tmp_path, OLD)) == []
    assert list(prune(database, tmp_path, Retention(29.5 * 86400))) == []
    assert files(tmp_path) == before
    assert len(checkpoints(database, ANN, paused).items) == 3


def test_the_best_is_kept_if_wanted(database: Database, tmp_path: Path) -> None:
    ranked, ranked_dir = a_run(database, tmp_path, ended_days_ago=31)
    plain, plain_dir = a_run(database, tmp_path, ended_days_ago=31)
    best = sa.update(JobCheckpoint).where(JobCheckpoint.job_id == ranked, JobCheckpoint.step == 2)
    execute(database, best.values(score=1.0))
    execute(database, sa.update(Job).where(Job.id == ranked).values(best_checkpoint_step=2))
    list(prune(database, tmp_path, Retention(MONTH, keep_best=True)))
    assert [found.step for found in checkpoints(database, ANN, ranked).items] == [2]
    assert [path.name for path in ranked_dir.saved_checkpoints()] == ["step-00000002-1"]
    assert get(database, ANN, ranked).last_checkpoint_step == 2
    assert [path.name for path in plain_dir.saved_checkpoints()] == ["step-00000003-1"]
    assert [found.step for found in checkpoints(database, ANN, plain).items] == [3]


def test_a_checkpoint_that_a_fork_needs_stays(database: Database, tmp_path: Path) -> None:
    parent, run_dir = a_run(database, tmp_path, ended_days_ago=31)
    child = submitted(database)
    pin = {"parent_job_id": parent, "parent_step": 1, "pinned_job_id": parent}
    execute(database, sa.update(Job).where(Job.id == child).values(**pin))
    list(prune(database, tmp_path, OLD))
    assert [path.name for path in run_dir.saved_checkpoints()] == ["step-00000001-1"]
    execute(database, sa.update(Job).where(Job.id == child).values(pinned_job_id=None))
    list(prune(database, tmp_path, OLD))
    assert run_dir.saved_checkpoints() == []


def test_a_job_that_an_errand_works_on_waits(database: Database, tmp_path: Path) -> None:
    job_id, run_dir = a_run(database, tmp_path, ended_days_ago=31)
    errand = {"id": "err_1", "owner_id": "ann", "kind": "generate", "queue": "default", "request": {"job_id": job_id}}
    execute(database, sa.insert(Errand).values(**errand, expire_time=db_time(100)))
    assert list(prune(database, tmp_path, OLD)) == []
    assert len(run_dir.saved_checkpoints()) == 3


def test_what_an_interrupted_run_left_is_found_again(sqlite_url: str, tmp_path: Path, monkeypatch) -> None:
    """The rows are gone and the folders are not: as after a crash between the two."""
    db = Database(sqlite_url)
    _, run_dir = a_run(db, tmp_path, ended_days_ago=31)
    monkeypatch.setattr(retention, "_remove", lambda _path: False)
    list(prune(db, tmp_path, OLD))
    assert len(run_dir.saved_checkpoints()) == 3
    monkeypatch.undo()
    list(prune(db, tmp_path, OLD))
    assert run_dir.saved_checkpoints() == []
    db.dispose()


ORPHAN = "job_" + "0" * 26


def orphan(runs: Path, name: str = ORPHAN, *, days: float = 40) -> Path:
    write(runs / name / "engine-1.log", 100)
    then = time.time() - days * 86400
    for path in (runs / name / "engine-1.log", runs / name):
        os.utime(path, (then, then))
    return runs / name


def test_folders_without_a_job_go_after_a_while(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    runs = tmp_path / "runs"
    known, _ = a_run(db, runs, ended_days_ago=1)
    old, young, foreign = orphan(runs), orphan(runs, "job_" + "1" * 26, days=29), orphan(runs, "lost+found")
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere / "engine-1.log", 1)
    (runs / ("job_" + "2" * 26)).symlink_to(elsewhere)
    assert [found.job_id for found in prune(db, runs, OLD)] == [old.name]
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)
    assert (elsewhere / "engine-1.log").exists()
    assert (runs / known).exists()
    fresh = orphan(runs, days=0.5)
    list(prune(db, runs, Retention(0.0)))
    assert fresh.exists(), "a day of grace, whatever the age asked for"
    db.dispose()


def test_a_database_without_jobs_makes_no_orphans(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    folder = orphan(tmp_path)
    assert list(prune(db, tmp_path, OLD)) == []
    assert folder.exists()
    db.dispose()


def test_the_operators_command(sqlite_url: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PPO_HOME", str(tmp_path))
    monkeypatch.setenv("PPO_DATABASE_URL", sqlite_url)
    db = Database(sqlite_url)
    _, run_dir = a_run(db, tmp_path / "runs", ended_days_ago=31)
    assert admin.main(["prune", "--older-than", "30d", "--keep-best", "--dry-run"]) == 0
    foretold = capsys.readouterr().out.splitlines()
    assert foretold[-1].startswith("would remove 8 things")
    assert len(run_dir.saved_checkpoints()) == 3
    assert admin.main(["prune", "--older-than", "4w", "--keep-best"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == foretold[:-1]
    assert len(run_dir.saved_checkpoints()) == 1
    with pytest.raises(SystemExit):
        admin.main(["prune", "--older-than", "30"])
    db.dispose()
