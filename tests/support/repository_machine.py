"""Random histories of the real repository layer: jobs and what is made of them, under workers that forget, repeat
themselves and come back from the dead, and a database whose commits may end in an error.

After every rule the invariants hold, and what the machine itself remembers: which claim is the newest, how many
attempts were charged, what a key stands for, which state was the last.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jobs import verbs
from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import IdempotencyConflict, IllegalTransition, LeaseLost
from jobs.forking import ForkRequest, fork, retry
from jobs.lifecycle import (
    USER_PAUSE,
    Claim,
    Lease,
    cancelled,
    claim,
    discard_checkpoint,
    fail,
    halve_microbatch,
    heartbeat,
    reap,
    record_checkpoint,
    record_guard,
    record_inheritance,
    record_phase,
    record_rollback,
    record_started,
    record_step,
    requeue,
    succeed,
)
from jobs.lifecycle import pause as end_paused
from jobs.lifecycle import stop as end_stopped
from jobs.lineage import begins_at
from jobs.retention import Retention, prune
from jobs.service import submit
from jobs.states import TERMINAL, JobState
from jobs.tables import Job, JobCheckpoint
from ppo_engine.events import Phase, PhaseEntered
from ppo_engine.rundir import checkpoint_step
from tests.support.attempts import ANN, ERROR, checkpoint, guard, rolled_back, started, step
from tests.support.errand_histories import ErrandHistory
from tests.support.invariants import check_invariants
from tests.support.outbox_histories import OutboxHistory
from tests.support.specs import make_spec
from tests.support.unlucky import MADE, NOT_MADE, Unlucky

Write = Callable[[Database, Lease, Job], object]

MAX_ATTEMPTS = 3
OPEN_JOBS = 3
"""So few at once that what is done to one meets what was done to it before."""
STEPS = 5

REPORTS: dict[str, Write] = {
    "heartbeat": lambda db, lease, _: heartbeat(db, lease, lease_seconds=60),
    "started": lambda db, lease, job: record_started(db, lease, started(step=job.step, steps_total=job.steps_total)),
    "phase": lambda db, lease, job: record_phase(db, lease, PhaseEntered(phase=Phase.ROLLOUT, step=job.step)),
    "next step": lambda db, lease, job: record_step(db, lease, step(min(job.step + 1, job.steps_total))),
    "same step": lambda db, lease, job: record_step(db, lease, step(max(job.step, begins_at(job) + 1))),
    "checkpoint": lambda db, lease, job: save(db, lease, job, None),
    "best checkpoint": lambda db, lease, job: save(db, lease, job, float(job.step % 3)),
    "guard": lambda db, lease, job: record_guard(db, lease, guard(job.step)),
    "roll back": lambda db, lease, job: record_rollback(
        db, lease, rolled_back(job.step, max(begins_at(job), job.step // 2))
    ),
    "discard": lambda db, lease, job: discard_checkpoint(db, lease, checkpoint(job.step, lease.attempt).path),
}
GIVES_UP = {"discard", "roll back"}
"""Take checkpoints away, whoever waits for them."""
CHARGED: dict[str, Write] = {
    "fail": lambda db, lease, _: fail(db, lease, ERROR),
    "try again": lambda db, lease, _: requeue(db, lease, error=ERROR, charge=True),
}
ENDS: dict[str, Write] = {
    **CHARGED,
    "succeed": lambda db, lease, _: succeed(db, lease),
    "cancelled": lambda db, lease, _: cancelled(db, lease),
    "pause": lambda db, lease, _: end_paused(db, lease, stop_reason="guard", message="a guard"),
    "pause as wished": lambda db, lease, _: end_paused(db, lease, stop_reason=USER_PAUSE, message="the owner"),
    "stop": lambda db, lease, _: end_stopped(db, lease, message="the owner"),
    "shut down": lambda db, lease, _: requeue(db, lease, error=None, charge=False),
    "halve": lambda db, lease, _: halve_microbatch(db, lease, error=ERROR, before=4, after=2),
}
SURVIVED = ["shut down", "try again", "pause"]
"""Ends after which the history goes on; drawn more often."""
VERBS = {"cancel": verbs.cancel, "pause": verbs.pause, "resume": verbs.resume, "stop": verbs.stop}

FAULTS = st.sampled_from([None, None, None, None, MADE, NOT_MADE])
WHICH = st.integers(0, OPEN_JOBS - 1)
AGES = st.sampled_from([0, 0, 0, 1, 2, 3])
"""Of a claim: 0 is the newest."""


def save(db: Database, lease: Lease, job: Job, score: float | None) -> None:
    if job.step > begins_at(job):
        record_checkpoint(db, lease, checkpoint(job.step, lease.attempt, score=score))


class Repository(RuleBasedStateMachine):
    """One owner, one webhook, some workers."""

    databases: ClassVar[Callable[[], AbstractContextManager[str]]]
    """Gives the URL of a fresh migrated database for each history."""

    def __init__(self) -> None:
        super().__init__()
        self._url = type(self).databases()
        url = self._url.__enter__()
        self.db, self.neighbour = Unlucky(url), Database(url)
        self.leases: dict[str, list[Lease]] = {}
        self.charges: Counter[str] = Counter()
        self.ends: dict[str, JobState] = {}
        self.given_up: set[tuple[str, int]] = set()
        """Checkpoints that were damaged or rolled back. A fork that waits for one is told, or was handed it."""
        self.keys: dict[str, tuple[int, str]] = {}
        """The spec's variant and the job of each idempotency key."""
        self.outbox = OutboxHistory(self.db)
        self.errands = ErrandHistory(self.db)

    def teardown(self) -> None:
        self.db.dispose()
        self.neighbour.dispose()
        self._url.__exit__(None, None, None)

    # --- what the machine looks up ------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        with self.db.read() as session:
            return session.get_one(Job, job_id)

    def checkpoints(self) -> set[tuple[str, int]]:
        with self.db.read() as session:
            saved = session.execute(sa.select(JobCheckpoint.job_id, JobCheckpoint.step))
            return {(job_id, step) for job_id, step in saved}

    def open_jobs(self) -> list[str]:
        return [job_id for job_id in self.leases if job_id not in self.ends]

    def pick(self, which: int, *, held: bool = False) -> str | None:
        """One of the newest jobs, of those that somebody has held."""
        jobs = [job_id for job_id, leases in self.leases.items() if leases or not held]
        return jobs[-1 - which % min(len(jobs), OPEN_JOBS)] if jobs else None

    def skip_time(self, *where: sa.ColumnElement[bool], **values: Any) -> None:
        with self.db.transaction() as session:
            session.execute(sa.update(Job).where(*where).values(**values))

    # --- rules --------------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.outbox.subscribe()
        self.accept(None, 0, None)
        self.take_next(None)

    @rule(key=st.sampled_from([None, "a", "b"]), variant=st.integers(0, 1), fault=FAULTS)
    def submit(self, key: str | None, variant: int, fault: str | None) -> None:
        if key in self.keys or len(self.open_jobs()) < OPEN_JOBS:
            self.accept(key, variant, fault)

    def accept(self, key: str | None, variant: int, fault: str | None) -> None:
        """A key stands for one job for ever; without one, only a client that got no answer asks twice."""
        spec = make_spec(
            name=f"variant-{variant}",
            ppo__steps=STEPS,
            retry={"max_attempts": MAX_ATTEMPTS},
            checkpoint={"keep_last": 1, "keep_best": 1},
        )
        if key is None:
            self.enter(submit(self.db, ANN, spec, roots=[])[0].id)
            return
        known = self.keys.get(key)
        try:
            ask = lambda: submit(self.db, ANN, spec, roots=[], request_id=key)  # noqa: E731
            view, created = self.db.until_it_answers(ask, fault)
        except IdempotencyConflict:
            assert known is not None
            assert known[0] != variant
            return
        if known is None:
            assert created or fault == MADE
            self.keys[key] = variant, view.id
            self.enter(view.id)
        else:
            assert (created, known) == (False, (variant, view.id)), "one key, two jobs"

    def enter(self, job_id: str) -> None:
        assert job_id not in self.leases, "a new job has a new id"
        self.leases[job_id] = []

    @rule(patient=st.booleans(), fault=FAULTS)
    def claim(self, patient: bool, fault: str | None) -> None:
        if patient:
            self.claim_soon(fault)
        else:
            self.take_next(fault)

    def claim_soon(self, fault: str | None) -> None:
        """Claim when the pauses after failed attempts are over."""
        self.skip_time(Job.state == JobState.QUEUED, not_before=db_time())
        self.take_next(fault)

    def take_next(self, fault: str | None) -> None:
        ask = lambda: claim(self.db, worker_id="w", queues=["default"], lease_seconds=60)  # noqa: E731
        held = self.db.until_it_answers(ask, fault)
        if held is None:
            return
        leases = self.leases[held.lease.job_id]
        assert held.lease.job_id not in self.ends, "an ended job was claimed"
        assert held.lease.token > max((lease.token for lease in leases), default=0)
        leases.append(held.lease)
        job = self.job(held.lease.job_id)
        at = begins_at(job) if held.checkpoint is None else checkpoint_step(Path(held.checkpoint))
        assert job.step == at, f"{job.id} goes on from step {at} and says {job.step}"
        self.inherit(held, fault)

    def inherit(self, held: Claim, fault: str | None) -> None:
        """As a worker does: before anything else."""
        what = held.inherited
        if what is not None and held.checkpoint is None:
            path = checkpoint(what.begins_at, 0).path
            self.db.until_it_answers(lambda: record_inheritance(self.db, held.lease, path, 1000), fault)

    @rule(which=WHICH, then=st.sampled_from(["unnoticed", "reaped", "claimed"]), fault=FAULTS)
    def lose_the_worker(self, which: int, then: str, fault: str | None) -> None:
        job_id = self.pick(which)
        self.skip_time(Job.id == job_id, Job.state == JobState.RUNNING, lease_expire_time=db_time(-1))
        if then != "unnoticed":
            self.reap(fault)
        if then == "claimed":
            self.claim_soon(None)

    def reap(self, fault: str | None) -> None:
        expired = sa.select(Job.id).where(Job.state == JobState.RUNNING, Job.lease_expire_time < db_time())
        with self.db.read() as session:
            lost = list(session.scalars(expired))
        self.db.until_it_answers(lambda: reap(self.db), fault)
        self.charges.update(lost)

    @rule(which=WHICH, verb=st.sampled_from(["cancel", "pause", "pause", "resume", "resume", "stop"]), fault=FAULTS)
    def ask(self, which: int, verb: str, fault: str | None) -> None:
        job_id = self.pick(which) or ""
        with suppress(IllegalTransition):
            self.db.until_it_answers(lambda: VERBS[verb](self.db, ANN, job_id), fault)

    @rule(which=WHICH, verb=st.sampled_from(["pause", "resume"]), other=st.sampled_from(["submit", "next step"]))
    def two_at_once(self, which: int, verb: str, other: str) -> None:
        """A verb has looked at its job and not written yet, and another process writes: neither may be refused."""
        job_id, refused = self.pick(which) or "", list[BaseException]()

        def neighbour() -> None:
            try:
                self.do_as_neighbour(other, job_id)
            except LeaseLost:
                pass
            except Exception as error:
                refused.append(error)

        with meanwhile(neighbour), suppress(IllegalTransition):
            VERBS[verb](self.db, ANN, job_id)
        assert not refused, f"refused beside another transaction: {refused}"

    def do_as_neighbour(self, what: str, job_id: str) -> None:
        if what == "submit":
            if len(self.open_jobs()) < OPEN_JOBS:
                self.enter(submit(self.neighbour, ANN, make_spec(ppo__steps=STEPS), roots=[])[0].id)
        elif self.leases[job_id]:
            REPORTS[what](self.neighbour, self.leases[job_id][-1], self.job(job_id))

    @rule(which=WHICH, steps=st.integers(1, STEPS), saved=st.booleans())
    def train(self, which: int, steps: int, saved: bool) -> None:
        """Whoever holds a job does what it is for; where nobody does, somebody takes the next first."""
        waits = self.pick(which)
        if waits is not None and self.job(waits).state is JobState.QUEUED:
            self.claim_soon(None)
        job_id = self.pick(which, held=True)
        if job_id is not None:
            self.do_steps(job_id, steps, saved=saved)

    def do_steps(self, job_id: str, steps: int, *, saved: bool) -> None:
        """Of the newest claim, whether it still holds the job or not."""
        for name in [*["next step"] * steps, *["best checkpoint"] * saved]:
            self.write(job_id, self.leases[job_id][-1], REPORTS[name], None)

    @rule(which=WHICH, age=AGES, name=st.sampled_from(sorted(REPORTS)), fault=FAULTS)
    def report(self, which: int, age: int, name: str, fault: str | None) -> None:
        job_id = self.pick(which, held=True)
        if job_id is not None:
            before = self.checkpoints()
            if self.write(job_id, self.claimed(job_id, age), REPORTS[name], fault) and name in GIVES_UP:
                self.given_up |= before - self.checkpoints()

    @rule(which=WHICH, age=AGES, name=st.sampled_from([*ENDS, *SURVIVED * 3]), fault=FAULTS)
    def end(self, which: int, age: int, name: str, fault: str | None) -> None:
        job_id = self.pick(which, held=True)
        if job_id is not None and self.write(job_id, self.claimed(job_id, age), ENDS[name], fault):
            self.charges[job_id] += name in CHARGED

    def claimed(self, job_id: str, age: int) -> Lease:
        leases = self.leases[job_id]
        return leases[-1 - min(age, len(leases) - 1)]

    def write(self, job_id: str, lease: Lease, write: Write, fault: str | None) -> bool:
        """A write comes through if the claim holds the job; otherwise it is refused, or changes nothing."""
        before = self.job(job_id)
        holds = before.state is JobState.RUNNING and lease == self.leases[job_id][-1]
        try:
            self.db.until_it_answers(lambda: write(self.db, lease, before), fault)
        except LeaseLost:
            assert not holds, "the holder was refused"
        else:
            assert holds or self.job(job_id).event_seq == before.event_seq, "a former holder wrote"
        return holds

    @rule(which=WHICH, forked=st.booleans(), key=st.sampled_from([None, "c"]), fault=FAULTS)
    def make_another(self, which: int, forked: bool, key: str | None, fault: str | None) -> None:
        """Retry or fork; asking again with the same key, or for a retry with none, makes one job."""
        job_id = self.pick(which)
        if job_id is None or len(self.open_jobs()) >= OPEN_JOBS:
            return
        if forked and self.leases[job_id]:
            self.do_steps(job_id, 1, saved=True)
        job = self.job(job_id)
        if forked and job.last_checkpoint_step is not None and job.steps_total < 2 * STEPS:
            request = ForkRequest(overrides={"ppo": {"steps": job.steps_total + 1}})
            self.enter(fork(self.db, ANN, job_id, request, roots=[])[0].id)
        elif not forked and job.state in (JobState.FAILED, JobState.CANCELLED):
            request_id = key and f"{key}-{job_id}"
            ask = lambda: retry(self.db, ANN, job_id, roots=[], request_id=request_id)  # noqa: E731
            first = self.db.until_it_answers(ask, fault)[0].id
            assert ask() == (ask()[0], False)
            assert ask()[0].id == first, "two retries of one job"
            if first not in self.leases:
                self.enter(first)

    @rule(keep_best=st.booleans())
    def prune(self, keep_best: bool) -> None:
        """Of jobs that ended, all checkpoints but the best go, and those that a fork still needs."""
        list(prune(self.db, Path("/nonexistent"), Retention(-1.0, keep_best=keep_best)))

    @rule(how=st.sampled_from(OutboxHistory.RULES), fault=FAULTS)
    def tell(self, how: str, fault: str | None) -> None:
        self.outbox.do(how, fault)

    @rule(how=st.sampled_from(ErrandHistory.RULES), age=AGES, fault=FAULTS)
    def errand(self, how: str, age: int, fault: str | None) -> None:
        self.errands.do(how, age, fault)

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        check_invariants(self.db)
        with self.db.read() as session:
            jobs = list(session.scalars(sa.select(Job)))
        known = self.checkpoints() | self.given_up
        assert {job.id for job in jobs} == set(self.leases), "jobs that nobody submitted, or lost ones"
        for job in jobs:
            assert job.attempt == len(self.leases[job.id]), f"{job.id} attempts that nobody claimed"
            assert job.failed_attempts == self.charges[job.id], f"{job.id} charged {self.charges[job.id]} attempts"
            assert job.failed_attempts < MAX_ATTEMPTS or job.state in TERMINAL, f"{job.id} lives on without attempts"
            assert self.ends.get(job.id, job.state) == job.state, f"{job.id} I6 was {self.ends[job.id]}"
            if job.state in TERMINAL:
                self.ends[job.id] = job.state
            if job.pinned_job_id is not None and job.pinned_job_id in self.leases:
                assert (job.pinned_job_id, job.parent_step) in known, f"{job.id} has lost the checkpoint it begins with"
        self.outbox.check()
        self.errands.check()


RULES = frozenset(
    {"submit", "claim", "lose_the_worker", "ask", "two_at_once", "train"}
    | {"report", "end", "make_another", "prune", "tell", "errand"}
)
"""Names of the rules."""


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """`act` runs in a thread of its own once a verb has looked at its job, which goes on where `act` waits for it."""
    threads: list[threading.Thread] = []

    def owned(*arguments: Any, **values: Any) -> Job:
        job = look(*arguments, **values)
        threads.append(threading.Thread(target=act))
        threads[-1].start()
        threads[-1].join(0.02)
        return job

    look = verbs.owned
    with patch.object(verbs, "owned", owned):
        try:
            yield
        finally:
            for thread in threads:
                thread.join(60)
