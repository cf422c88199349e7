"""How long a run would take, from earlier runs: whose, of which model, scaled how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.auth import Principal
from jobs.clock import db_time
from jobs.db import Database
from jobs.lifecycle import record_step, succeed
from jobs.plan_views import Eta
from jobs.tables import Job
from jobs.workload import eta_of
from tests.support.attempts import ANN, BOB, claimed, step, submitted
from tests.support.specs import make_spec

BASE: dict[str, Any] = {
    "ppo": {"steps": 5, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
    "generation": {"max_new_tokens": 8},
}


@pytest.fixture
def own(sqlite_url: str) -> Iterator[Database]:
    """SQLite only, for what does not depend on the database."""
    db = Database(sqlite_url)
    yield db
    db.dispose()


def ran(db: Database, principal: Principal, seconds: float, **overrides: Any) -> None:
    """A job that has ended well, each of whose steps took so long."""
    held = claimed(db, submitted(db, principal, **BASE | overrides))
    for number in range(1, 3):
        record_step(db, held.lease, step(number, **{"time/ppo/total": seconds}))
    succeed(db, held.lease)


def eta(db: Database, principal: Principal = ANN, **overrides: Any) -> Eta:
    return eta_of(db, principal, make_spec(**BASE | overrides))


def test_without_history_the_time_is_unknown_and_says_so(database: Database):
    found = eta(database)
    assert (found.known, found.low_seconds, found.high_seconds, found.jobs) == (False, None, None, 0)
    assert found.basis.startswith("unknown")


def test_the_same_run_again_takes_about_as_long(database: Database):
    ran(database, ANN, 2.0)
    ran(database, ANN, 3.0)
    found = eta(database)
    assert (found.known, found.jobs, found.seconds_per_step) == (True, 2, 2.5)
    # 5 steps: of the fastest run less a fifth, of the slowest one a quarter more, 18.75
    assert (found.low_seconds, found.high_seconds) == (8.0, 18.8)


def test_it_is_scaled_by_tokens_and_epochs(database: Database):
    ran(database, ANN, 2.0)
    twice = eta(database, generation={"max_new_tokens": 16})
    assert twice.seconds_per_step == pytest.approx(4.0)
    # 3 passes before the update and 3 in each epoch: 6 then, 15 now
    epochs = eta(database, ppo=BASE["ppo"] | {"ppo_epochs": 4})
    assert epochs.seconds_per_step == pytest.approx(5.0)


@pytest.mark.parametrize(
    "other",
    [
        {"model__policy": {"hub": "org/other"}},
        {"model__lora": {"rank": 4}},
        {"resources": {"processes": 2}},
        {"resources": {"queue": "slow"}},
    ],
    ids=["model", "adapters", "processes", "queue"],
)
def test_runs_of_another_kind_do_not_count(own: Database, other: dict[str, Any]):
    ran(own, ANN, 2.0)
    assert not eta(own, **other).known


def test_what_a_run_took_beside_its_steps_is_added(own: Database):
    ran(own, ANN, 0.001)
    with own.transaction() as session:  # as if loading had taken 40 s
        session.execute(sa.update(Job).values(start_time=db_time(-40)))
    found = eta(own)
    assert found.low_seconds == pytest.approx(32, abs=0.5)
    assert found.high_seconds == pytest.approx(50, abs=0.7)


def test_nobody_learns_from_anothers_runs(own: Database):
    ran(own, BOB, 2.0)
    assert not eta(own, ANN).known
    assert eta(own, BOB).known
