"""Random histories of the repository layer: what must hold does, and without any of its mechanisms it does not.

Few histories in `make test`, always the same; 500 on each database in `make robustness`, others each time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy.exc import IntegrityError

from jobs.errors import Unavailable
from tests.support import sabotage
from tests.support.databases import copied_postgres, copy_sqlite
from tests.support.fault_table import FULL, SEED, count
from tests.support.repository_machine import RULES, Repository
from tests.support.servers import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

Databases = Callable[[], AbstractContextManager[str]]
STEPS_PER_HISTORY = 30


def run_histories(
    databases: Databases, examples: int, *, rules: Collection[str] | None = None, shrink: bool = True
) -> None:
    """Raise what the first history raised that did not hold; with `rules`, of histories of those alone."""
    others = RULES - set(RULES if rules is None else rules)
    machine = type("OnThisDatabase", (Repository,), {"databases": staticmethod(databases), **dict.fromkeys(others)})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS_PER_HISTORY,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=not FULL,
        report_multiple_bugs=False,
        phases=[Phase.generate, *[Phase.shrink] * shrink],
    )
    run_state_machine_as_test(hypothesis.seed(SEED)(machine) if FULL else machine, settings=chosen)


@contextmanager
def sqlite_copy(template: Path) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="ppo-machine-"))
    try:
        yield copy_sqlite(template, folder)
    finally:
        shutil.rmtree(folder)


def test_random_histories_on_sqlite(sqlite_template_file: Path) -> None:
    run_histories(partial(sqlite_copy, sqlite_template_file), count(10, 500))


def test_random_histories_on_postgres(postgres_server: Postgres, postgres_template_name: str) -> None:
    run_histories(partial(copied_postgres, postgres_server, postgres_template_name), count(2, 500))


@pytest.mark.parametrize(
    ("without", "rules"),
    [
        (sabotage.without_fence, ["lose_the_worker", "report"]),
        (sabotage.without_state_guard, ["claim", "end"]),
        (sabotage.deferred_transactions, ["two_at_once"]),
        (sabotage.without_key_check, ["submit"]),
        (sabotage.without_key, ["submit"]),
        (sabotage.without_charge, ["end", "lose_the_worker"]),
        (sabotage.without_rewind, ["train", "lose_the_worker"]),
        (sabotage.without_outbox, ["submit"]),
        (sabotage.without_errand_fence, ["errand"]),
    ],
)
def test_a_mechanism_that_is_missing_is_missed(
    sqlite_template_file: Path, without: Callable[[], AbstractContextManager[None]], rules: list[str]
) -> None:
    """With the rules alone that it takes: they find it in few histories."""
    databases = partial(sqlite_copy, sqlite_template_file)
    with without(), pytest.raises((AssertionError, IntegrityError, Unavailable)):
        run_histories(databases, count(15, 100), rules=rules, shrink=False)
