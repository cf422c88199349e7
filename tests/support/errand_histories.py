"""The part of random histories that is about errands: only the newest try may speak, and an answer is the last word."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import sqlalchemy as sa

from jobs.clock import db_time
from jobs.errand_work import (
    MAX_TRIES,
    ErrandClaim,
    answer_errand,
    beat_errand,
    claim_errand,
    fail_errand,
    return_errand,
    tidy_errands,
)
from jobs.errands import ask
from jobs.errors import LeaseLost
from jobs.fleet import beat_worker
from jobs.tables import Errand
from ppo_engine.errands import ErrandKind
from tests.support.attempts import ANN, ERROR
from tests.support.unlucky import MADE, Unlucky

_OPEN_ERRANDS = 2


class ErrandHistory:
    """Claims of errands, oldest first, and how those errands ended."""

    RULES: ClassVar = ["ask", "claim", "claim", "beat", "answer", "fail", "return", "lose", "lose"]

    def __init__(self, db: Unlucky) -> None:
        self._db = db
        self._claims: list[ErrandClaim] = []
        self._ends: dict[str, tuple[object, object]] = {}
        self._asked = 0

    def do(self, how: str, age: int, fault: str | None) -> None:
        """One thing that an owner, a worker or its loss does to an errand."""
        if how == "ask":
            if self._asked - len(self._ends) < _OPEN_ERRANDS:
                said = {"host": "here", "metrics_url": None, "slots": 1, "busy": 0, "queues": ["default"]}
                beat_worker(self._db, "w", **said)
                ask(self._db, ANN, kind=ErrandKind.PREVIEW_REWARD, request={"x": 1}, queue="default")
                self._asked += 1
        elif how == "claim":
            self._claim(fault)
        elif how == "lose":
            with self._db.transaction() as session:
                expired = {"lease_expire_time": db_time(-1)}
                session.execute(sa.update(Errand).where(Errand.worker_id.is_not(None)).values(**expired))
            self._db.until_it_answers(lambda: tidy_errands(self._db), fault)
        elif self._claims:
            self._write(how, self._claims[-1 - min(age, len(self._claims) - 1)], fault)

    def _claim(self, fault: str | None) -> None:
        take = lambda: claim_errand(self._db, worker_id="w", queues=["default"], lease_seconds=60)  # noqa: E731
        claim = self._db.until_it_answers(take, fault)
        if claim is None:
            return
        earlier = [other.token for other in self._claims if other.id == claim.id]
        assert claim.token > max(earlier, default=0)
        assert claim.id not in self._ends, "an ended errand was claimed"
        self._claims.append(claim)

    def _write(self, how: str, claim: ErrandClaim, fault: str | None) -> None:
        db = self._db
        writes: dict[str, Callable[[], object]] = {
            "beat": lambda: beat_errand(db, claim, lease_seconds=60),
            "answer": lambda: answer_errand(db, claim, {"said_by": claim.token}),
            "fail": lambda: fail_errand(db, claim, ERROR),
            "return": lambda: return_errand(db, claim),
        }
        row = self._row(claim.id)
        holds = row.worker_id is not None and row.lease_token == claim.token
        try:
            db.until_it_answers(writes[how], fault)
        except LeaseLost:
            # A write that was made and not answered for finds nothing to write to: the worker drops what is done.
            assert not holds or (fault == MADE and how != "beat"), "the holder was refused"
        else:
            assert holds, "a former holder wrote"

    def _row(self, errand_id: str) -> Errand:
        with self._db.read() as session:
            return session.get_one(Errand, errand_id)

    def check(self) -> None:
        """Raise AssertionError where an ended errand changed, or one is tried too often."""
        with self._db.read() as session:
            rows = list(session.scalars(sa.select(Errand)))
        assert len(rows) == self._asked, "an errand is missing, or there are two"
        for row in rows:
            assert row.tries <= MAX_TRIES, f"{row.id} was tried {row.tries} times"
            if row.end_time is not None:
                end = row.answer, row.error
                assert self._ends.setdefault(row.id, end) == end, f"{row.id} ended twice"
        by_newest = {claim.id: claim.token for claim in self._claims}
        for row in rows:
            said_by = (row.answer or {}).get("said_by", by_newest.get(row.id))
            assert said_by == by_newest.get(row.id), f"{row.id} was answered by a former try"
