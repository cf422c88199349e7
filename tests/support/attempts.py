"""What an engine would say, and a job brought to a wanted state."""

from __future__ import annotations

from typing import Any

from jobs.auth import Principal
from jobs.db import Database
from jobs.lifecycle import Claim, cancelled, claim, fail, pause, record_checkpoint, record_step, requeue, succeed
from jobs.service import cancel, submit
from jobs.states import JobState
from jobs.views import JobError
from ppo_engine.events import CheckpointSaved, GuardTripped, RolledBack, Sample, Started, StepDone
from tests.support.specs import make_spec

ANN = Principal("ann")
BOB = Principal("bob")
ERROR = JobError(code="non_finite", category="config", message="the loss is not finite", attempt=1)


def submitted(db: Database, principal: Principal = ANN, **overrides: Any) -> str:
    """A queued job."""
    return submit(db, principal, make_spec(**overrides), roots=[])[0].id


def claimed(db: Database, job_id: str | None = None, *, lease_seconds: float = 60, worker_id: str = "w1") -> Claim:
    """The claim of the next job, or of this one."""
    found = claim(db, worker_id=worker_id, queues=["default"], lease_seconds=lease_seconds, job_id=job_id)
    assert found is not None
    return found


def job_in(db: Database, state: JobState) -> tuple[str, Claim | None]:
    """A job in `state`, and the claim it was last held by."""
    job_id = submitted(db)
    if state is JobState.QUEUED:
        return job_id, None
    held = claimed(db, job_id)
    match state:
        case JobState.SUCCEEDED:
            succeed(db, held.lease)
        case JobState.FAILED:
            fail(db, held.lease, ERROR)
        case JobState.PAUSED:
            pause(db, held.lease, stop_reason="guard", message="paused at step 0: a guard")
        case JobState.CANCELLED:
            cancel(db, ANN, job_id)
            cancelled(db, held.lease)
    return job_id, held


def give_back(db: Database, held: Claim, *, charge: bool = False) -> None:
    """The attempt ends, and the job may be claimed again at once."""
    requeue(db, held.lease, error=ERROR if charge else None, charge=charge)


def started(**values: Any) -> Started:
    facts = {"step": 0, "steps_total": 5, "device": "cpu", "precision": "fp32", "prompts": 2}
    return Started.model_validate({**facts, "parameters": 10, "trainable_parameters": 10, **values})


def step(number: int, **scalars: float) -> StepDone:
    """A step with two samples."""
    numbers = {"ppo/mean_scores": 0.1 * number, "time/ppo/total": 2.0, **scalars}
    return StepDone(step=number, scalars=numbers, samples=[sample(f"{number}a"), sample(f"{number}b")])


def sample(response: str) -> Sample:
    return Sample(
        prompt="The movie was",
        response=response,
        score=0.5,
        components={"sentiment": 0.5},
        response_tokens=3,
        finished=True,
    )


def checkpoint(number: int, attempt: int = 1, score: float | None = None) -> CheckpointSaved:
    path = f"checkpoints/step-{number:08d}-{attempt}"
    return CheckpointSaved(step=number, path=path, size_bytes=1000, sha256="0" * 64, score=score)


def guard(number: int, action: str = "rollback", value: float = 30.0) -> GuardTripped:
    rule = "objective/kl above 25"
    return GuardTripped(step=number, rule=rule, action=action, metric="objective/kl", value=value)


def rolled_back(number: int, to_step: int, factor: float = 0.5) -> RolledBack:
    return RolledBack(step=number, to_step=to_step, learning_rate_factor=factor)


def record_steps(db: Database, held: Claim, first: int, last: int) -> None:
    """Steps `first` to `last`, without a checkpoint."""
    for number in range(first, last + 1):
        record_step(db, held.lease, step(number))


def record_steps_and_checkpoint(db: Database, held: Claim, first: int, last: int) -> list[str]:
    """The same, and a checkpoint at the last."""
    record_steps(db, held, first, last)
    return record_checkpoint(db, held.lease, checkpoint(last, held.lease.attempt))
