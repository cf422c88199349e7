"""How a job takes over another one's checkpoint.

The worker of its first attempt links that checkpoint into the new run's folder. Until then the old job's row of it is
pinned: pruning passes it over. Where the old job is rolled back behind it, that job's worker hands it over first.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import JobNotFound
from jobs.history import owned
from jobs.lease import Lease, fence, held
from jobs.lineage import Inherited, Lineage, forks_waiting, inherited
from jobs.tables import JobCheckpoint
from jobs.transition import Happening, note, touch
from ppo_engine.inheritance import ATTEMPT


def pin(session: Session, principal: Principal, lineage: Lineage) -> None:
    """Make sure that the checkpoint is still there as the new job is stored; from now on it stays.

    Raises:
        JobNotFound: it was given up a moment ago.
    """
    if lineage.step is None:
        return
    owned(session, principal, lineage.job_id, lock=True)
    row = session.get(JobCheckpoint, (lineage.job_id, lineage.step), populate_existing=True)
    if row is None or row.sha256 != lineage.sha256:
        raise JobNotFound(f"the job keeps its checkpoint of step {lineage.step} no more")


def forks_to_serve(db: Database, lease: Lease, behind_step: int) -> dict[str, Inherited]:
    """Forks by id that need a checkpoint behind `behind_step`, where the run has just gone back to.

    Asked when the rollback is stored: then no further fork can be made of what it voids.
    """
    with db.read() as session:
        return forks_waiting(session, lease.job_id, behind_step)


def record_inheritance(db: Database, lease: Lease, path: str, size_bytes: int) -> None:
    """The checkpoint now lies in the run's own folder, and the old job may give it up; raises LeaseLost."""
    with db.transaction() as session:
        job = held(touch(session, fence(lease), pinned_job_id=None), lease)
        what = inherited(job)
        if what is None or session.get(JobCheckpoint, (job.id, what.begins_at)) is not None:
            return
        row = JobCheckpoint(
            job_id=job.id,
            step=what.begins_at,
            attempt=ATTEMPT,
            lease_token=lease.token,
            path=path,
            size_bytes=size_bytes,
            sha256=what.sha256,
        )
        session.add(row)
        session.flush()
        happened = Happening(
            f"begins with the checkpoint of step {what.step} of {what.job_id}",
            {"job_id": what.job_id, "step": what.step, "anew": list(what.anew)},
        )
        note(session, "inherited", fence(lease), happened, last_checkpoint_step=what.begins_at)
