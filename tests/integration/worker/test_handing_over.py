"""A run that is rolled back gives forks that wait what it is about to delete."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.forking import ForkRequest, fork
from jobs.lifecycle import Claim
from jobs.service import cancel, checkpoints
from ppo_engine.events import CheckpointSaved, RolledBack
from ppo_engine.rundir import MANIFEST, RunDir
from tests.support.attempts import claimed, record_steps, started, submitted
from tests.support.invariants import check_invariants
from tests.support.workers import quick_settings
from worker.inheritance import Gone, take_over
from worker.lease import LeaseKeeper
from worker.recorder import Recorder
from worker.shutdown import Shutdown

WEIGHTS = "weights of step 3"


@dataclass
class Parent:
    """A run that has checkpoints of steps 2 and 3."""

    db: Database
    home: Path
    claim: Claim
    recorder: Recorder

    def run_dir(self, job_id: str) -> RunDir:
        return RunDir(self.home / "runs" / job_id)

    @property
    def folder(self) -> Path:
        return self.run_dir(self.claim.lease.job_id).checkpoint(3, 1)

    def save(self, step: int, weights: str) -> None:
        """As the engine does, and then says."""
        run_dir = self.run_dir(self.claim.lease.job_id)
        folder = run_dir.checkpoint(step, 1)
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model" / "weights").write_text(weights)
        manifest = json.dumps({"files": weights}).encode()
        (folder / MANIFEST).write_bytes(manifest)
        path, sha256 = str(folder.relative_to(run_dir.root)), hashlib.sha256(manifest).hexdigest()
        self.recorder.record(CheckpointSaved(step=step, path=path, size_bytes=1, sha256=sha256))

    def fork(self, step: int) -> str:
        request = ForkRequest(from_step=step, overrides={"ppo": {"steps": 9}})
        return fork(self.db, LOCAL, self.claim.lease.job_id, request, roots=[])[0].id

    def roll_back(self) -> None:
        self.recorder.record(RolledBack(step=3, to_step=2, learning_rate_factor=0.5))


@pytest.fixture
def parent(database: Database, tmp_path: Path) -> Parent:
    claim = claimed(database, submitted(database, LOCAL, checkpoint={"every_steps": 1, "keep_last": 2}))
    lifecycle.record_started(database, claim.lease, started())
    settings, shutdown = quick_settings(tmp_path, "sqlite:///unused.db"), Shutdown()
    keeper = LeaseKeeper(lifecycle.Wishes, claimed_at=0, heartbeat_seconds=60, fence_seconds=60, on_loss=lambda: None)
    run_dir = RunDir(tmp_path / "runs" / claim.lease.job_id)
    recorder = Recorder(claim, db=database, run_dir=run_dir, keeper=keeper, settings=settings, shutdown=shutdown)
    made = Parent(database, tmp_path, claim, recorder)
    for step in (1, 2, 3):
        record_steps(database, claim, step, step)
        recorder.step = step
        if step > 1:
            made.save(step, f"weights of step {step}")
    return made


def taken(parent: Parent, child: str) -> str:
    """The weights that a fork begins with, once its first attempt has taken them over."""
    held = claimed(parent.db, child)
    assert held.inherited is not None
    run_dir = parent.run_dir(child)
    path, size = take_over(parent.run_dir(held.inherited.job_id), run_dir, held.inherited)
    lifecycle.record_inheritance(parent.db, held.lease, path, size)
    folder = run_dir.root / path
    assert size == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert [found.name for found in run_dir.checkpoints.iterdir()] == [folder.name], "nothing half is left"
    return (folder / "model" / "weights").read_text()


def test_a_fork_keeps_the_checkpoint_that_the_other_run_was_rolled_back_behind(parent: Parent) -> None:
    needs, other, unwanted = parent.fork(3), parent.fork(2), parent.fork(3)
    cancel(parent.db, LOCAL, unwanted)
    parent.roll_back()
    assert not parent.folder.exists()
    assert not parent.run_dir(unwanted).root.exists(), "one that has ended needs nothing"
    assert not parent.run_dir(other).root.exists(), "the checkpoint of step 2 stays where it is"
    record_steps(parent.db, parent.claim, 3, 3)
    parent.recorder.step = 3
    parent.save(3, "other weights, under the same name")
    assert taken(parent, needs) == WEIGHTS
    assert taken(parent, other) == "weights of step 2"
    assert [found.step for found in checkpoints(parent.db, LOCAL, needs).items] == [3]
    lifecycle.succeed(parent.db, parent.claim.lease)
    check_invariants(parent.db)


def test_what_was_handed_over_needs_the_other_run_no_more(parent: Parent) -> None:
    child = parent.fork(3)
    parent.roll_back()
    shutil.rmtree(parent.run_dir(parent.claim.lease.job_id).root)
    assert taken(parent, child) == WEIGHTS


def test_a_fork_that_began_already_is_left_alone(parent: Parent) -> None:
    child = parent.fork(3)
    assert taken(parent, child) == WEIGHTS
    before = sorted((path, path.stat().st_ino) for path in parent.run_dir(child).root.rglob("*"))
    parent.roll_back()
    assert sorted((path, path.stat().st_ino) for path in parent.run_dir(child).root.rglob("*")) == before


def test_a_rollback_is_stored_though_the_checkpoint_can_be_given_to_nobody(parent: Parent) -> None:
    child = parent.fork(3)
    (parent.folder / MANIFEST).write_text("written anew already")
    parent.roll_back()
    assert [found.step for found in checkpoints(parent.db, LOCAL, parent.claim.lease.job_id).items] == [2]
    held = claimed(parent.db, child)
    assert held.inherited is not None
    with pytest.raises(Gone):
        take_over(parent.run_dir(held.inherited.job_id), parent.run_dir(child), held.inherited)
    assert list(parent.run_dir(child).checkpoints.iterdir()) == []


def test_two_that_put_it_there_at_once_leave_one(parent: Parent) -> None:
    """The worker of the old run, and the one that has just claimed the fork."""
    child = parent.fork(3)
    held = claimed(parent.db, child)
    assert held.inherited is not None
    source, run_dir, what = parent.run_dir(held.inherited.job_id), parent.run_dir(child), held.inherited
    with ThreadPoolExecutor(8) as pool:
        places = set(pool.map(lambda _: take_over(source, run_dir, what)[0], range(8)))
    assert len(places) == 1
    assert taken_names(run_dir) == [run_dir.checkpoint(3, 0).name]
    assert (run_dir.root / places.pop() / "model" / "weights").read_text() == WEIGHTS


def taken_names(run_dir: RunDir) -> list[str]:
    return [path.name for path in run_dir.checkpoints.iterdir()]
