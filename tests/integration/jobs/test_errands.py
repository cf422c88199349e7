"""Errands as rows: who may ask, who does them, and that nothing is done twice or forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.db import Database
from jobs.errand_views import ErrandState
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
from jobs.errands import MAX_OPEN, ask, errand
from jobs.errors import JobNotFound, LeaseLost, NoWorker, QuotaExceeded
from jobs.tables import Errand
from ppo_engine.errands import ErrandKind
from tests.integration.jobs.test_indexes import plans
from tests.support.attempts import ANN, BOB, ERROR
from tests.support.errand_desk import alive

ANSWER = {"texts": 1, "groups": 0, "total": None, "components": [], "scores": [], "findings": [], "seconds": 1.0}


def asked(db: Database, **changed: Any) -> str:
    alive(db)
    return ask(db, ANN, **{"kind": ErrandKind.PREVIEW_REWARD, "request": {"x": 1}, "queue": "default", **changed})


def taken(db: Database, *, lease_seconds: float = 60) -> ErrandClaim:
    claim = claim_errand(db, worker_id="w", queues=["default"], lease_seconds=lease_seconds)
    assert claim is not None
    return claim


def test_from_question_to_answer(database: Database) -> None:
    errand_id = asked(database)
    assert errand(database, ANN, errand_id).state is ErrandState.WAITING
    claim = taken(database)
    assert (claim.id, claim.kind, claim.request, claim.tries) == (errand_id, "preview_reward", {"x": 1}, 1)
    assert errand(database, ANN, errand_id).state is ErrandState.RUNNING
    beat_errand(database, claim, lease_seconds=60)
    answer_errand(database, claim, ANSWER)
    assert errand(database, ANN, errand_id).state is ErrandState.SUCCEEDED
    with pytest.raises(LeaseLost):
        answer_errand(database, claim, ANSWER)


def test_an_answer_has_what_the_engine_said_and_no_character_that_a_database_refuses(database: Database) -> None:
    errand_id = asked(database)
    answer_errand(
        database, taken(database), {**ANSWER, "findings": [{"code": "a\0b", "component": None, "message": ""}]}
    )
    view = errand(database, ANN, errand_id)
    assert (view.state, view.done, view.error) == (ErrandState.SUCCEEDED, True, None)
    assert view.preview is not None
    assert view.preview.findings[0].code == "a\ufffdb"


def test_a_failure_says_why(database: Database) -> None:
    errand_id = asked(database)
    fail_errand(database, taken(database), ERROR)
    view = errand(database, ANN, errand_id)
    assert (view.state, view.error, view.preview) == (ErrandState.FAILED, ERROR, None)


def test_nobody_sees_anothers(database: Database) -> None:
    errand_id = asked(database)
    for principal, wanted in ((BOB, errand_id), (ANN, "errand_" + "0" * 26), (ANN, "x\0y")):
        with pytest.raises(JobNotFound):
            errand(database, principal, wanted)


@pytest.mark.parametrize(
    ("worker", "queue"), [({}, "gpu"), ({"errands": False}, "default"), ({"queues": ("gpu",)}, "default")]
)
def test_without_a_worker_that_could_it_is_refused_at_once(
    database: Database, worker: dict[str, Any], queue: str
) -> None:
    alive(database, **worker)
    with pytest.raises(NoWorker, match=f"queue `{queue}`"):
        ask(database, ANN, kind=ErrandKind.PREVIEW_REWARD, request={}, queue=queue)


def test_one_owner_cannot_fill_the_desk(database: Database) -> None:
    for _ in range(MAX_OPEN):
        asked(database)
    with pytest.raises(QuotaExceeded):
        asked(database)
    ask(database, BOB, kind=ErrandKind.PREVIEW_REWARD, request={}, queue="default")
    answer_errand(database, taken(database), ANSWER)
    asked(database)


def test_many_workers_take_each_once(database: Database) -> None:
    wanted = {asked(database) for _ in range(MAX_OPEN)}
    with ThreadPoolExecutor(4) as pool:
        claims = list(
            pool.map(lambda _: claim_errand(database, worker_id="w", queues=["default"], lease_seconds=60), range(12))
        )
    found = [claim.id for claim in claims if claim is not None]
    # Two that look at the same row: one of them may come away with nothing, and looks again at its next poll.
    while (claim := claim_errand(database, worker_id="w", queues=["default"], lease_seconds=60)) is not None:
        found.append(claim.id)
    assert sorted(found) == sorted(wanted)


def test_a_lost_worker_writes_nothing_and_the_errand_is_tried_once_more(database: Database) -> None:
    errand_id = asked(database)
    first = taken(database, lease_seconds=-1)
    assert tidy_errands(database) == 1
    assert errand(database, ANN, errand_id).state is ErrandState.WAITING
    second = taken(database, lease_seconds=-1)
    for write in (
        lambda: answer_errand(database, first, ANSWER),
        lambda: return_errand(database, first),
        lambda: beat_errand(database, first, lease_seconds=60),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert second.tries == MAX_TRIES
    assert tidy_errands(database) == 1
    view = errand(database, ANN, errand_id)
    assert view.error is not None
    assert (view.state, view.error.code) == (ErrandState.FAILED, "worker_lost")
    with pytest.raises(LeaseLost):
        answer_errand(database, second, ANSWER)
    assert tidy_errands(database) == 0


def test_one_that_was_given_back_counts_as_not_tried(database: Database) -> None:
    asked(database)
    for _ in range(MAX_TRIES + 1):
        claim = taken(database)
        assert claim.tries == 1
        return_errand(database, claim)


def test_what_waits_too_long_fails_and_what_is_old_goes(database: Database) -> None:
    errand_id, held = asked(database), asked(database)
    older = taken(database)
    assert older.id == errand_id
    return_errand(database, older)

    def age() -> None:
        with database.transaction() as session:
            session.execute(sa.update(Errand).values(expire_time=Errand.create_time))

    holder = taken(database)
    age()
    tidy_errands(database)
    assert {errand(database, ANN, one).state for one in (errand_id, held)} == {ErrandState.FAILED, ErrandState.RUNNING}
    answer_errand(database, holder, ANSWER)
    tidy_errands(database)
    assert errand(database, ANN, holder.id).state is ErrandState.SUCCEEDED, "an answer is kept for a while"
    age()
    tidy_errands(database)
    for one in (errand_id, held):
        with pytest.raises(JobNotFound):
            errand(database, ANN, one)


def test_rows_are_found_by_an_index(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    errand_id = asked(db)
    with plans() as found:
        asked(db)
        errand(db, ANN, errand_id)
        claim = taken(db)
        beat_errand(db, claim, lease_seconds=60)
        answer_errand(db, claim, ANSWER)
        taken(db, lease_seconds=-1)
        tidy_errands(db)
    assert found
    assert [plan for plan in found if plan.startswith("SCAN errands")] == []
    db.dispose()
