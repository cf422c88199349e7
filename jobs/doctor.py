"""A look at all that the database knows: does it answer, does somebody do the work? Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from jobs import dispatch, fleet
from jobs.clock import db_time
from jobs.db import Database
from jobs.diagnosis import Finding, failure, good, warning
from jobs.errors import Unavailable
from jobs.migrate import revisions
from jobs.places import look_at_places
from jobs.principal import Scope, scopes_of
from jobs.settings import DomainSettings
from jobs.tables import IS_QUEUED, IS_RUNNING, ApiKey, Job, JobCheckpoint, JobEvent, Worker

_SLOW_SECONDS = 0.05
_SKEW_SECONDS = 2.0
_OVERDUE_SECONDS = 30
"""A lease is returned within the reaper's 10 s; after this long nobody reaps."""
_WAITING_SECONDS = 300
_SOON = timedelta(days=7)
_SHOWN = 5
_KEYS_READ = 10_000
MIGRATE = "run `python -m jobs.admin migrate`"


def examine(db: Database, settings: DomainSettings) -> list[Finding]:
    """Look at the database, its clock, the folders, workers, queues, leases, keys and webhooks.

    What rests on the database is left out where it does not answer or has other tables.
    """
    answers, *rest = _database(db, settings)
    findings, checkpoint_bytes = [answers, *rest], 0
    if not any(finding.advice for finding in rest) and answers.level != "failure":
        with db.read() as session:
            findings.append(_clock(session))
            findings += [*_workers(session), *_queues(session, db), *_leases(session), *_keys(session, settings)]
            checkpoint_bytes = _running_checkpoint_bytes(session)
        findings.append(_webhooks(db))
    return [*findings, *look_at_places(settings, checkpoint_bytes=checkpoint_bytes)]


def _database(db: Database, settings: DomainSettings) -> Iterator[Finding]:
    """Whether it answers and how fast, then whether its tables are this version's."""
    url = make_url(settings.database_url)
    where = url.render_as_string(hide_password=True)
    # Opening an SQLite file that is not there would make one.
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        yield failure("database", f"there is no {where}", f"{MIGRATE}, or set PPO_HOME or PPO_DATABASE_URL right")
        return
    try:
        seconds = min(_round_trip_seconds(db) for _ in range(3))
    except Unavailable as error:
        advice = "is the server up, the address in PPO_DATABASE_URL right, the password too?"
        yield failure("database", f"{where}: {error.message}", advice)
        return
    text = f"{where} answers in {seconds * 1000:.1f} ms"
    slow = "every step of a job waits for it: bring the two nearer, or relieve the server"
    yield good("database", text) if seconds < _SLOW_SECONDS else warning("database", text, slow)
    yield _tables(db)


def _round_trip_seconds(db: Database) -> float:
    started = time.perf_counter()
    db.ping()
    return time.perf_counter() - started


def _tables(db: Database) -> Finding:
    found = revisions(db)
    if found.current == found.newest:
        return good("migrations", f"the tables are at revision {found.current}")
    if found.is_behind:
        text = f"the tables are at revision {found.current or 'none'}, this version needs {found.newest}"
        return failure("migrations", text, MIGRATE)
    text = f"the tables are at revision {found.current}, which is newer than this version ({found.newest})"
    return warning("migrations", text, "look with the newer version; it was installed elsewhere already")


def _clock(session: Session) -> Finding:
    before = datetime.now(UTC)
    theirs = session.execute(sa.select(db_time())).scalar_one()
    after = datetime.now(UTC)
    # The answer was made somewhere between the two looks at our own clock; that much cannot be told.
    ahead = max((theirs - after).total_seconds(), (before - theirs).total_seconds(), 0.0)
    if ahead < _SKEW_SECONDS:
        return good("clock", f"this machine and the database differ by less than {_SKEW_SECONDS:g} s")
    advice = "start NTP on both; leases compare the database's clock alone, but signatures and logs do not"
    return warning("clock", f"this machine and the database differ by {ahead:.0f} s", advice)


def _workers(session: Session) -> Iterator[Finding]:
    rows = session.execute(
        sa.select(Worker, (Worker.update_time > db_time(-fleet.ALIVE_SECONDS)).label("alive"))
        .order_by(Worker.id)
        .limit(_KEYS_READ)
    ).all()
    devices = _devices(session)
    for row, alive in rows:
        text = f"{row.id}: {row.busy} of {row.slots} slots busy, queues {', '.join(row.queues)}"
        if row.id in devices:
            text += f", device {', '.join(sorted(devices[row.id]))}"
        if alive:
            yield good("workers", text)
        else:
            silent = f"{row.id} was last heard of at {row.update_time:%Y-%m-%d %H:%M:%S} UTC"
            yield warning("workers", silent, "it ended without a word, or cannot reach the database: see its log")
    if not any(alive for _, alive in rows):
        yield failure("workers", "no worker lives: queued jobs wait", "start one: `python -m worker`, or `ppo up`")
    limits = {row.max_running_jobs for row, alive in rows if alive}
    if len(limits) > 1:
        yield warning(
            "workers", "workers differ in PPO_MAX_RUNNING_JOBS", "give all of them and the front doors the same value"
        )


def _devices(session: Session) -> dict[str, set[str]]:
    """What the engines of the jobs that run now said they compute on, by worker."""
    said = sa.select(Job.worker_id, JobEvent.data).join(JobEvent, JobEvent.job_id == Job.id)
    said = said.where(IS_RUNNING, JobEvent.type == "started", JobEvent.attempt == Job.attempt)
    found: dict[str, set[str]] = {}
    for worker_id, data in session.execute(said):
        if worker_id is not None and isinstance(data.get("device"), str):
            found.setdefault(worker_id, set()).add(data["device"])
    return found


def _queues(session: Session, db: Database) -> Iterator[Finding]:
    served = {queue for worker in fleet.workers(db) for queue in worker.queues}
    waiting = sa.select(Job.queue, sa.func.count().label("jobs")).where(IS_QUEUED).group_by(Job.queue)
    counts = {row.queue: row.jobs for row in session.execute(waiting.order_by(Job.queue))}
    ages = fleet.queue_ages(db)
    for queue, jobs in counts.items():
        text = f"{jobs} in queue {queue}, the first free to start for {ages.get(queue, 0.0):.0f} s"
        if queue in served:
            yield good("queues", text)
        else:
            advice = f"start a worker with PPO_QUEUES={queue}, or cancel the jobs and name another `resources.queue`"
            yield failure("queues", f"{text}: no worker serves it", advice)
    if not counts:
        yield good("queues", "no job waits")


def _leases(session: Session) -> Iterator[Finding]:
    expired = sa.select(Job.id).where(IS_RUNNING, Job.lease_expire_time < db_time(-_OVERDUE_SECONDS))
    ids = session.scalars(expired.order_by(Job.lease_expire_time).limit(_SHOWN + 1)).all()
    if not ids:
        yield good("leases", "no lease is overdue")
        return
    named = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
    advice = "any live worker returns them within PPO_REAP_SECONDS: start one, or look for `reap failed` in the logs"
    yield failure("leases", f"expired more than {_OVERDUE_SECONDS} s ago and not returned: {named}", advice)


def _keys(session: Session, settings: DomainSettings) -> Iterator[Finding]:
    usable = ApiKey.revoke_time.is_(None) & (ApiKey.expire_time.is_(None) | (ApiKey.expire_time > db_time()))
    rows = session.execute(sa.select(ApiKey.scopes, ApiKey.expire_time).where(usable).limit(_KEYS_READ)).all()
    if session.scalar(sa.select(ApiKey.id).limit(1)) is None:
        yield good("keys", "none was made: only this machine is let in, as owner `local`")
        return
    make = "make one: `python -m jobs.admin create-key OWNER --scope admin`"
    if not rows:
        yield failure("keys", "every key is revoked or has expired: nobody is let in", make)
        return
    text = f"{len(rows)} in use"
    if not any(Scope.ADMIN in scopes_of(scopes) for scopes, _ in rows):
        yield warning("keys", f"{text}, none of an administrator", make)
    soon = session.execute(sa.select(db_time())).scalar_one() + _SOON
    ending = sum(end is not None and end < soon for _, end in rows)
    if ending:
        yield warning("keys", f"{ending} of {text} end within {_SOON.days} days", "make new ones before: `ppo keys ls`")
    if not settings.key_pepper.get_secret_value() and not settings.database_url.startswith("sqlite"):
        advice = "set PPO_KEY_PEPPER for every process; keys made before must be made anew"
        yield warning("keys", f"{text}, hashed without a pepper", advice)
    else:
        yield good("keys", text)


def _running_checkpoint_bytes(session: Session) -> int:
    """What the newest checkpoints of running jobs take together."""
    newest = sa.and_(JobCheckpoint.job_id == Job.id, JobCheckpoint.step == Job.last_checkpoint_step)
    total = sa.select(sa.func.sum(JobCheckpoint.size_bytes)).select_from(Job).join(JobCheckpoint, newest)
    return int(session.scalar(total.where(IS_RUNNING)) or 0)


def _webhooks(db: Database) -> Finding:
    left = dispatch.backlog(db)
    text = f"{left.messages} messages to deliver"
    if left.overdue_seconds < _WAITING_SECONDS:
        return good("webhooks", text)
    advice = "start the relay (`python -m worker.relay`), or the worker of an embedded service"
    return failure("webhooks", f"{text}, the first due for {left.overdue_seconds:.0f} s", advice)
