"""What an owner may ask of a job: each verb is one transaction, and asking twice is fine.

Of a running job it is a wish, which its worker hears with the next heartbeat. Cancel outranks stop, and stop outranks
pause: a weaker wish than the one that waits is refused, a stronger one takes its place.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from jobs import audit
from jobs.auth import Principal
from jobs.clock import db_time
from jobs.db import Database
from jobs.ending import USER_PAUSE
from jobs.errors import IllegalTransition
from jobs.history import owned
from jobs.job_view import actions, job_view
from jobs.reports import CANCEL_REQUESTED, PAUSE_REQUESTED, PAUSE_WITHDRAWN, STOP_REQUESTED
from jobs.states import TERMINAL, JobState, Move
from jobs.tables import Job
from jobs.transition import Happening, move, note
from jobs.views import JobView


def cancel(db: Database, principal: Principal, job_id: str) -> JobView:
    """Cancel a job: at once where it waits, at the end of its step where it runs.

    Raises:
        IllegalTransition: it has already succeeded or failed.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        this, seen = [Job.id == job.id], job.event_seq
        if job.state in (JobState.QUEUED, JobState.PAUSED):
            what = Happening("cancelled while no worker held it")
            asked = {"cancel_request_time": db_time(), "stop_reason": "cancelled"}
            ended = move(session, Move.CANCEL, this, what, **asked) or job
            return _changed(session, principal, "job.cancel", ended, seen)
        if job.state is JobState.RUNNING and job.cancel_request_time is None:
            what = Happening("cancel requested; the worker ends the current step first")
            job = note(session, CANCEL_REQUESTED, this, what, cancel_request_time=db_time()) or job
        elif job.state is not JobState.RUNNING and job.state is not JobState.CANCELLED:
            raise _refused(job, f"the job has already {job.state}")
        return _changed(session, principal, "job.cancel", job, seen)


def stop(db: Database, principal: Principal, job_id: str) -> JobView:
    """End a running job well after its step, which is checkpointed, or after its first step.

    Raises:
        IllegalTransition: it does not run, and has not succeeded either; or it is being cancelled.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        asked = job.stop_request_time is not None and job.state not in TERMINAL and job.cancel_request_time is None
        if asked or job.state is JobState.SUCCEEDED:
            return job_view(session, job)
        if job.state is not JobState.RUNNING or job.cancel_request_time is not None:
            raise _refused(job)
        seen, what = job.event_seq, Happening("stop requested; the worker ends the current step first")
        stopping = {"stop_request_time": db_time(), "pause_request_time": None}
        stopped = note(session, STOP_REQUESTED, [Job.id == job.id], what, **stopping) or job
        return _changed(session, principal, "job.stop", stopped, seen)


def pause(db: Database, principal: Principal, job_id: str) -> JobView:
    """Hold a job: at once where it is queued, after its step, which is checkpointed, where it runs.

    Raises:
        IllegalTransition: it has ended, or is being cancelled or stopped.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        this, seen = [Job.id == job.id], job.event_seq
        if job.state in TERMINAL or job.cancel_request_time is not None or job.stop_request_time is not None:
            raise _refused(job)
        if job.state is JobState.QUEUED:
            what = Happening("paused while no worker held it")
            job = move(session, Move.PAUSE, this, what, stop_reason=USER_PAUSE) or job
        elif job.state is JobState.RUNNING and job.pause_request_time is None:
            what = Happening("pause requested; the worker ends the current step first")
            job = note(session, PAUSE_REQUESTED, this, what, pause_request_time=db_time()) or job
        return _changed(session, principal, "job.pause", job, seen)


def resume(db: Database, principal: Principal, job_id: str) -> JobView:
    """Put a paused job back into the queue, to go on from its last checkpoint; or take back the wish to pause it.

    Raises:
        IllegalTransition: it has ended.
    """
    with db.transaction() as session:
        job = owned(session, principal, job_id, lock=True)
        this, seen = [Job.id == job.id], job.event_seq
        if job.state in TERMINAL:
            raise _refused(job, f"the job has already {job.state}")
        if job.state is JobState.RUNNING and job.pause_request_time is not None:
            what = Happening("its owner no longer wants it paused")
            job = note(session, PAUSE_WITHDRAWN, this, what, pause_request_time=None) or job
        now = {"not_before": db_time(), "next_wake_time": db_time(), "stop_reason": None}
        resumed = move(session, Move.RESUME, this, Happening("resumed by its owner"), **now)
        return _changed(session, principal, "job.resume", resumed or job, seen)


def _changed(session: Session, principal: Principal, action: str, job: Job, seen: int) -> JobView:
    """The job after a verb; an entry in the audit log where it has had an event since event `seen`."""
    if job.event_seq > seen:
        audit.record(session, principal, action, job.id)
    return job_view(session, job)


def _refused(job: Job, message: str | None = None) -> IllegalTransition:
    possible = actions(job)
    wish = "; it is being cancelled" if job.cancel_request_time is not None else ""
    wish = "; it is being stopped" if not wish and job.stop_request_time is not None else wish
    is_now = f"the job is {job.state}{'' if job.state in TERMINAL else wish}"
    hint = f"possible now: {', '.join(possible)}" if possible else "nothing more can be done with it"
    return IllegalTransition(f"{message or is_now}; {hint}", state=job.state, allowed_actions=possible)
