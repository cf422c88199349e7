"""`verify-resume` on a real job with everything on: what is the same, what is not, and that the job is left alone."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from safetensors.torch import load_file, save_file

from api.rpc.v1 import job_service_pb2 as pb
from jobs import service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.lifecycle import record_checkpoint, record_rollback, record_started, record_step, succeed
from jobs.tables import Base, Errand, Job, JobMetrics, JobSample
from jobs.verifying import ask_verification
from ppo_engine.events import CheckpointSaved, Event, Started, StepDone
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from ppo_engine.verification import VerificationWork
from tests.support.attempts import BOB, claimed, rolled_back, submitted
from tests.support.databases import copy_sqlite
from tests.support.errand_desk import alive, desk
from tests.support.grpc_api import stub_at
from tests.support.http_api import App, app_on, served_on, settings
from tests.support.specs import make_spec
from tests.support.tiny_models import tiny_classifier, tiny_llama

STEPS = 6
SPEC: dict[str, Any] = {
    "model": {
        "policy": {"path": "policy"},
        "lora": {"rank": 2},
        "value": {"separate": {"source": {"path": "judge"}}},
        "ema_decay": 0.9,
    },
    "rewards": [
        {"name": "length", "rule": {"name": "length", "params": {"target": 3}}},
        {"name": "mood", "weight": 2.0, "rule": {"name": "sentiment"}},
    ],
    "generation": {"max_new_tokens": 4},
    "ppo": {
        "steps": STEPS,
        "batch_size": 4,
        "minibatch_size": 2,
        "ppo_epochs": 2,
        "score_scaling": "normalise",
    },
    "kl": {"init_kl_coef": 0.5, "adaptive": {"target": 1e-3, "horizon": 20}},
    "ptx": {"texts": {"inline": ["The sun rose.", "Rain fell.", "A door closed."]}, "batch_size": 2},
    "optimizer": {"learning_rate": 1e-2, "schedule": "cosine"},
    "evaluation": {"prompts": {"inline": ["She was"]}, "every_steps": 2},
    "checkpoint": {"every_steps": 2, "keep_last": 3},
    "logging": {"tensorboard": True},
    "resources": {"device": "cpu", "precision": "fp32"},
}


def record(db: Database, home: Path) -> str:
    """Train the job in this process, and record it as a worker does; returns its id."""
    spec = make_spec(**SPEC)
    job, _ = service.submit(db, LOCAL, spec, roots=[home / "models"])
    held = claimed(db, job.id)

    def hear(event: Event) -> None:
        if isinstance(event, Started):
            record_started(db, held.lease, event)
        elif isinstance(event, StepDone):
            record_step(db, held.lease, event)
        elif isinstance(event, CheckpointSaved):
            record_checkpoint(db, held.lease, event)

    out = RunDir(home / "runs" / job.id)
    out.root.mkdir(parents=True)
    Run(held.config, RunOptions(out=out, roots=[home / "models"], threads=1, prune=False), hear)()
    succeed(db, held.lease)
    return job.id


@dataclass(frozen=True)
class Trained:
    """A service with a job that has succeeded, and a worker that does errands."""

    app: App
    home: Path
    id: str

    def checkpoint(self, step: int) -> Path:
        return self.home / "runs" / self.id / "checkpoints" / f"step-{step:08d}-1"

    def ask(self, **body: Any) -> httpx.Response:
        return self.app.post(f"/v1/jobs/{self.id}/verify-resume", json=body, params={"timeout": 120})

    def verified(self, **body: Any) -> dict[str, Any]:
        answer = self.ask(**body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["verification"]
        return found


@pytest.fixture(scope="module")
def trained_home(tmp_path_factory: pytest.TempPathFactory, sqlite_template_file: Path) -> tuple[Path, str]:
    """The home of a service whose job has succeeded, and the job's id."""
    home = tmp_path_factory.mktemp("home")
    tiny_llama(home / "models" / "policy")
    tiny_classifier(home / "models" / "judge")
    db = Database(copy_sqlite(sqlite_template_file, home))
    job_id = record(db, home)
    db.dispose()
    return home, job_id


@pytest.fixture
def trained(trained_home: tuple[Path, str], tmp_path: Path) -> Iterator[Trained]:
    """A copy of it that a test may damage."""
    home = tmp_path / "home"
    shutil.copytree(trained_home[0], home)
    (file,) = home.glob("*.db")
    db = Database(f"sqlite:///{file}")
    with app_on(db, settings(home, f"sqlite:///{file}")) as app, desk(db, home):
        yield Trained(app, home, trained_home[1])
    db.dispose()


def rows(db: Database) -> dict[str, list[Any]]:
    """All rows, but for those of errands, of the audit log and of workers."""
    own = [table for table in Base.metadata.sorted_tables if table.name not in ("errands", "audit_entries", "workers")]
    with db.read() as session:
        return {table.name: sorted(map(repr, session.execute(sa.select(table)))) for table in own}


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_steps_come_out_as_recorded_and_the_job_is_left_alone(trained: Trained) -> None:
    db = trained.app.context.db
    before = rows(db), files(trained.home / "runs")
    found = trained.verified()
    assert (found["identical"], found["from_step"], found["to_step"]) == (True, 4, 6), found["verdict"]
    assert [(step["step"], step["identical"], step["samples"]) for step in found["steps"]] == [
        (5, True, 4),
        (6, True, 5),
    ]
    assert all(step["scalars"] > 40 for step in found["steps"])
    (kept,) = found["checkpoints"]
    assert (kept["step"], kept["identical"], kept["state"]) == (6, True, [])
    assert kept["tensors"] > 60
    assert (rows(db), files(trained.home / "runs")) == before
    assert list(trained.home.glob("verify-*")) == []
    with db.read() as session:
        assert session.scalars(sa.select(Errand.kind)).all() == ["verify_resume"]


def test_a_number_changed_by_one_ulp_is_named(trained: Trained) -> None:
    db, key = trained.app.context.db, "ppo/loss/policy"
    this = JobMetrics.job_id == trained.id, JobMetrics.step == 4
    with db.transaction() as session:
        scalars = dict(session.scalar(sa.select(JobMetrics.scalars).where(*this)) or {})
        recorded = math.nextafter(scalars[key], math.inf)
        session.execute(sa.update(JobMetrics).where(*this).values(scalars={**scalars, key: recorded}))
    found = trained.verified(step=2, steps=3)
    assert found["identical"] is False
    assert [step["identical"] for step in found["steps"]] == [True, False, True]
    (difference,) = found["steps"][1]["differences"]
    distance = abs(scalars[key] - recorded)
    assert (difference["key"], difference["recorded"], difference["replayed"]) == (key, recorded, scalars[key])
    assert (difference["absolute"], found["keys"][0]["key"], found["keys"][0]["first_step"]) == (distance, key, 4)
    assert len(found["keys"]) == 1
    assert [note["code"] for note in found["notes"]] == ["record_changed"]
    assert f"`{key}` of step 4" in found["verdict"]


def test_a_changed_sample_is_named_with_the_place(trained: Trained) -> None:
    this = JobSample.job_id == trained.id, JobSample.step == 5, JobSample.index == 1
    with trained.app.context.db.transaction() as session:
        response = session.scalar(sa.select(JobSample.response).where(*this)) or ""
        session.execute(sa.update(JobSample).where(*this).values(response=f"{response}!"))
    (step,) = trained.verified(step=4, steps=1)["steps"]
    (difference,) = step["sample_differences"]
    assert (difference["index"], difference["field"], difference["position"]) == (1, "response", len(response))
    assert (json.loads(difference["recorded"]), json.loads(difference["replayed"])) == ("!", "")


def test_a_changed_tensor_of_a_later_checkpoint_is_named(trained: Trained) -> None:
    file = trained.checkpoint(6) / "value.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(-1)[0] += 0.5
    save_file(tensors, file)
    found = trained.verified()
    assert found["identical"] is False
    (kept,) = found["checkpoints"]
    assert [difference["name"] for difference in kept["differences"]] == [f"value.safetensors:{name}"]
    assert kept["differences"][0]["max_absolute"] == pytest.approx(0.5)
    codes = [note["code"] for note in found["notes"]]
    assert codes == ["checkpoint_changed", "checkpoint_damaged"]


def test_a_damaged_checkpoint_to_begin_with_is_a_clear_error(trained: Trained) -> None:
    file = trained.checkpoint(4) / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    answer = trained.ask()
    assert (answer.status_code, answer.json()["code"]) == (502, "errand_failed")
    assert answer.json()["errors"][0]["code"] == "checkpoint_corrupt"
    assert "optimizer.safetensors does not match the manifest" in answer.json()["detail"]
    assert "Name another checkpoint" in answer.json()["detail"]
    shutil.rmtree(trained.checkpoint(4))
    gone = trained.ask()
    assert (gone.status_code, gone.json()["errors"][0]["code"]) == (422, "checkpoint_gone")


def test_without_records_two_replays_are_compared(trained: Trained) -> None:
    with trained.app.context.db.transaction() as session:
        session.execute(sa.delete(JobMetrics).where(JobMetrics.step > 2))
    refused = trained.ask()
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "too_few_steps")
    assert "steps that have one: 2, 4, 6" in refused.json()["detail"]
    found = trained.verified(twice=True, steps=1)
    assert (found["identical"], found["twice"], found["from_step"]) == (True, True, 4)
    assert found["checkpoints"][0]["tensors"] > 60
    assert "two replays" in {left["reason"].split(" were")[0] for left in found["not_compared"]}


def test_what_cannot_be_replayed_is_refused(trained: Trained) -> None:
    for body, status, code in (
        ({"step": 3}, 404, "not_found"),
        ({"step": 6}, 422, "too_few_steps"),
        ({"steps": 21}, 422, "out_of_range"),
        ({"stepz": 2}, 422, "unknown_field"),
        ({"twice": True, "step": 6}, 422, "too_few_steps"),
    ):
        answer = trained.ask(**body)
        found = answer.json()
        assert (answer.status_code, found["errors"][0]["code"] if found["errors"] else found["code"]) == (status, code)
    db = trained.app.context.db
    for job_id in (submitted(db, BOB), "job_x"):
        assert trained.app.post(f"/v1/jobs/{job_id}/verify-resume", json={}).status_code == 404


def test_a_run_that_ran_out_of_memory_is_replayed_in_as_many_turns(trained: Trained) -> None:
    db = trained.app.context.db
    with db.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == trained.id).values(microbatch_size=1))
    ask_verification(db, LOCAL, trained.id, {"step": 4, "steps": 1})
    with db.read() as session:
        asked = VerificationWork.model_validate(session.scalars(sa.select(Errand.request)).one())
    assert (asked.parts, asked.config.microbatch_size) == (2, 1)


def test_what_came_before_a_rollback_is_not_replayed(sqlite_app: App) -> None:
    db = sqlite_app.context.db
    alive(db)
    job_id, _ = service.submit(db, LOCAL, make_spec(ppo__steps=9), roots=[])[0].id, None
    held = claimed(db, job_id)
    for number in (1, 2, 3, 4, 5):
        record_step(db, held.lease, StepDone(step=number, scalars={"time/ppo/total": 1.0}))
        if number in (2, 4):
            path = f"checkpoints/step-{number:08d}-1"
            saved = CheckpointSaved(step=number, path=path, size_bytes=1, sha256="0" * 64)
            record_checkpoint(db, held.lease, saved)
    record_rollback(db, held.lease, rolled_back(5, 4))
    path = f"/v1/jobs/{job_id}/verify-resume"
    answer = sqlite_app.post(path, json={"step": 2}, params={"timeout": 0})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "rolled_back")
    answer = sqlite_app.post(path, json={}, params={"timeout": 0})
    assert answer.json()["errors"][0]["code"] == "too_few_steps"


def test_grpc_says_the_same(trained: Trained) -> None:
    context = trained.app.context
    given = settings(trained.home, context.settings.database_url, http_port=0, grpc_port=0)
    with served_on(context.db, given) as served, stub_at(served.grpc) as stub:
        request = pb.VerifyResumeRequest(job_id=trained.id, request=pb.VerificationRequest(step=2, steps=1))
        errand = stub.VerifyResume(request, timeout=60).errand
    assert errand.kind == "verify_resume"
    assert (errand.verification.identical, errand.verification.from_step) == (True, 2)
    assert [left.what for left in errand.verification.not_compared][-1] == "weights"
