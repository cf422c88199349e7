"""What an owner does with errands: look through them, and cancel one, whatever its worker does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from jobs import errand_control
from jobs.access_tables import AuditEntry
from jobs.db import Database
from jobs.errand_control import cancel_errand, list_errands
from jobs.errand_views import ErrandState
from jobs.errand_work import (
    answer_errand,
    beat_errand,
    claim_errand,
    end_cancelled,
    fail_errand,
    return_errand,
    tidy_errands,
)
from jobs.errands import errand
from jobs.errors import IllegalTransition, InvalidArgument, JobNotFound, LeaseLost
from ppo_engine.errands import ErrandKind
from tests.integration.jobs.test_errands import ANSWER, asked, taken
from tests.integration.jobs.test_indexes import plans
from tests.support.attempts import ANN, BOB, ERROR, submitted


def cancels_logged(db: Database) -> int:
    with db.read() as session:
        return len(session.scalars(sa.select(AuditEntry.id).where(AuditEntry.action == "errand.cancel")).all())


def test_one_that_waits_is_cancelled_at_once_and_once(database: Database) -> None:
    errand_id = asked(database)
    view = cancel_errand(database, ANN, errand_id)
    assert (view.state, view.done, view.error and view.error.code) == (ErrandState.CANCELLED, True, "cancelled")
    assert cancel_errand(database, ANN, errand_id) == view == errand(database, ANN, errand_id)
    assert cancels_logged(database) == 1
    assert claim_errand(database, worker_id="w", queues=["default"], lease_seconds=60) is None


def test_the_worker_of_one_that_runs_hears_of_it_and_ends_it(database: Database) -> None:
    errand_id = asked(database)
    claim = taken(database)
    assert not beat_errand(database, claim, lease_seconds=60).cancel
    for _ in range(2):
        view = cancel_errand(database, ANN, errand_id)
        assert (view.state, view.done, view.cancel_request_time is None) == (ErrandState.RUNNING, False, False)
    assert cancels_logged(database) == 1
    assert beat_errand(database, claim, lease_seconds=60).cancel
    end_cancelled(database, claim)
    assert cancel_errand(database, ANN, errand_id).state is ErrandState.CANCELLED
    with pytest.raises(LeaseLost):
        answer_errand(database, claim, ANSWER)
    assert errand(database, ANN, errand_id).preview is None


def test_an_answer_that_was_there_first_stays(database: Database) -> None:
    errand_id = asked(database)
    claim = taken(database)
    cancel_errand(database, ANN, errand_id)
    answer_errand(database, claim, ANSWER)
    with pytest.raises(IllegalTransition, match="already succeeded"):
        cancel_errand(database, ANN, errand_id)


@pytest.mark.parametrize("lose", ["give it back", "fall silent"])
def test_no_other_worker_takes_what_was_cancelled_while_it_ran(database: Database, lose: str) -> None:
    errand_id = asked(database)
    claim = taken(database, lease_seconds=60 if lose == "give it back" else -1)
    cancel_errand(database, ANN, errand_id)
    if lose == "give it back":
        return_errand(database, claim)
    else:
        assert tidy_errands(database) == 1
    assert errand(database, ANN, errand_id).state is ErrandState.CANCELLED
    assert claim_errand(database, worker_id="w", queues=["default"], lease_seconds=60) is None


def test_a_worker_that_lost_its_claim_cancels_nothing(database: Database) -> None:
    errand_id = asked(database)
    stale = taken(database, lease_seconds=-1)
    tidy_errands(database)
    fresh = taken(database)
    with pytest.raises(LeaseLost):
        end_cancelled(database, stale)
    assert fresh.token > stale.token
    assert errand(database, ANN, errand_id).state is ErrandState.RUNNING


def test_what_has_ended_and_what_is_anothers_cannot_be_cancelled(database: Database) -> None:
    errand_id = asked(database)
    for principal, wanted in ((BOB, errand_id), (ANN, "errand_" + "0" * 26), (ANN, "x\0y")):
        with pytest.raises(JobNotFound):
            cancel_errand(database, principal, wanted)
    fail_errand(database, taken(database), ERROR)
    with pytest.raises(IllegalTransition) as caught:
        cancel_errand(database, ANN, errand_id)
    assert (caught.value.state, caught.value.allowed_actions) == ("failed", [])


# --- list ---------------------------------------------------------------------------------------------------------


def one_of_each(db: Database, job_id: str) -> dict[str, str]:
    """Errands by their state; the one that runs is a generation of the job."""
    ids = {"succeeded": asked(db)}
    answer_errand(db, taken(db), ANSWER)
    ids["failed"] = asked(db)
    fail_errand(db, taken(db), ERROR)
    ids["running"] = asked(db, kind=ErrandKind.GENERATE, job_id=job_id)
    taken(db)
    ids["waiting"] = asked(db)
    ids["cancelled"] = asked(db)
    cancel_errand(db, ANN, ids["cancelled"])
    return ids


def test_they_are_listed_by_state_kind_and_job(database: Database) -> None:
    job_id = submitted(database, ANN)
    ids = one_of_each(database, job_id)

    def listed(**wanted: Any) -> list[str]:
        return [view.id for view in list_errands(database, ANN, **wanted).items]

    assert listed() == sorted(ids.values(), reverse=True)
    for state in ErrandState:
        assert listed(state=state) == [ids[state.value]]
        (view,) = list_errands(database, ANN, state=state).items
        assert view.state is state
    assert listed(kind=ErrandKind.GENERATE) == listed(job_id=job_id) == [ids["running"]]
    assert listed(kind=ErrandKind.GENERATE, state=ErrandState.WAITING) == []
    assert list_errands(database, ANN, state=ErrandState.SUCCEEDED).items[0].preview is None, "answers can be long"
    assert list_errands(database, BOB).items == []
    with pytest.raises(JobNotFound):
        list_errands(database, BOB, job_id=job_id)


def test_they_come_by_page(database: Database) -> None:
    ids = one_of_each(database, submitted(database, ANN))
    found, token = [], None
    while True:
        page = list_errands(database, ANN, page_size=2, token=token)
        assert len(page.items) <= 2
        found += [view.id for view in page.items]
        token = page.next_page_token
        if token is None:
            break
    assert found == sorted(ids.values(), reverse=True)
    for bad in ("x", "c3RlcF8x", ""):
        with pytest.raises(InvalidArgument, match="page_token"):
            list_errands(database, ANN, token=bad)
    with pytest.raises(InvalidArgument):
        list_errands(database, ANN, page_size=0)
    assert errand_control.MAX_PAGE_SIZE == 200


def test_every_list_reads_an_index_in_its_order(sqlite_url: str) -> None:
    db = Database(sqlite_url)
    job_id = submitted(db, ANN)
    ids = one_of_each(db, job_id)
    for wanted in ({}, {"kind": ErrandKind.GENERATE}, {"job_id": job_id}, *({"state": state} for state in ErrandState)):
        with plans() as found:
            list_errands(db, ANN, **wanted)  # type: ignore[arg-type]
        plan = [step for step in found if "errands" in step or "TEMP B-TREE" in step]
        assert len(plan) == 1, (wanted, plan)
        assert plan[0].startswith("SEARCH errands USING INDEX"), (wanted, plan)
    with plans() as found:
        cancel_errand(db, ANN, ids["waiting"])
    assert [step for step in found if step.startswith("SCAN")] == []
    db.dispose()
