"""Errands done by a worker's desk: a real engine process, a real database, no Celery."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.db import Database
from jobs.errand_control import cancel_errand
from jobs.errand_views import ErrandState, ErrandView
from jobs.errand_work import tidy_errands
from jobs.errands import ask, errand
from jobs.tables import Errand
from ppo_engine.errands import ErrandKind
from tests.integration.jobs.test_errands import ANSWER
from tests.support.attempts import ANN
from tests.support.errand_desk import alive
from tests.support.servers import wait_until
from tests.support.workers import ENGINE_COMMAND, quick_settings, stack, submit_script, wait_for_step
from worker.errands import ErrandDesk
from worker.gauges import Gauges
from worker.shutdown import Shutdown
from worker.spare import Spare


@dataclass
class Bench:
    """A desk in this process."""

    db: Database
    home: Path
    gauges: Gauges = field(default_factory=Gauges)
    shutdown: Shutdown = field(default_factory=Shutdown)

    def desk(self, spare: Spare | None = None, **changed: Any) -> ErrandDesk:
        settings = quick_settings(self.home, "sqlite:///unused.db", **changed)
        return ErrandDesk(db=self.db, settings=settings, gauges=self.gauges, shutdown=self.shutdown, spare=spare)

    def ask(self, **script: Any) -> str:
        alive(self.db)
        return ask(self.db, ANN, kind=ErrandKind.PREVIEW_REWARD, request=script, queue="default")

    def see(self, errand_id: str) -> ErrandView:
        return errand(self.db, ANN, errand_id)

    def count(self, reason: str = "") -> float:
        labels = {"kind": "preview_reward", "reason": reason}
        return self.gauges.registry.get_sample_value("ppo_worker_errands_total", labels) or 0.0


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path) -> Iterator[Bench]:
    db = Database(sqlite_url)
    yield Bench(db, tmp_path)
    db.dispose()


def test_all_that_wait_are_done_in_their_order(bench: Bench) -> None:
    first, second = bench.ask(answer=ANSWER), bench.ask(answer={**ANSWER, "texts": 2})
    bench.desk().work()
    views = [bench.see(one) for one in (first, second)]
    assert [view.state for view in views] == [ErrandState.SUCCEEDED] * 2
    assert [view.preview and view.preview.texts for view in views] == [1, 2]
    assert views[0].end_time is not None
    assert views[1].start_time is not None
    assert views[0].end_time <= views[1].start_time
    assert bench.count() == 2


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("fail", "model_unavailable", "there is no such model"),
        ("exit_7", "engine_crashed", "exit code 7"),
        ("garbage", "engine_protocol", "not an event"),
        ("silent", "engine_protocol", "without saying how"),
        ("hang", "errand_too_long", "longer than 1 s"),
    ],
)
def test_what_goes_wrong_is_said_and_the_desk_goes_on(bench: Bench, fault: str, code: str, said: str) -> None:
    failing, good = bench.ask(fault=fault, answer=ANSWER), bench.ask(answer=ANSWER)
    bench.desk(errand_seconds=1).work()
    error = bench.see(failing).error
    assert error is not None
    assert (error.code, bench.see(good).state, bench.count(code)) == (code, ErrandState.SUCCEEDED, 1)
    assert said in error.message
    assert "hf_abcdefghijklmnop" not in error.log_tail


def test_an_engine_that_cannot_be_started_is_a_failure(bench: Bench) -> None:
    errand_id = bench.ask(answer=ANSWER)
    bench.desk(engine_command=["/nowhere/engine"]).work()
    error = bench.see(errand_id).error
    assert error is not None
    assert error.code == "engine_not_started"


def test_a_worker_that_ends_gives_it_back(bench: Bench) -> None:
    errand_id = bench.ask(fault="hang")
    thread = threading.Thread(target=bench.desk().work)
    thread.start()
    wait_until(lambda: bench.see(errand_id).state is ErrandState.RUNNING, 60, lambda: "it is not taken")
    bench.shutdown.request()
    thread.join(60)
    view = bench.see(errand_id)
    assert (view.state, view.tries) == (ErrandState.WAITING, 0)
    assert not bench.desk().do_next(), "a worker that ends takes nothing"


def test_one_whose_lease_is_lost_writes_nothing(bench: Bench) -> None:
    errand_id = bench.ask(fault="hang")
    thread = threading.Thread(target=bench.desk().do_next)
    thread.start()
    wait_until(lambda: bench.see(errand_id).state is ErrandState.RUNNING, 60, lambda: "it is not taken")
    with bench.db.transaction() as session:
        session.execute(sa.update(Errand).values(lease_expire_time=Errand.create_time))
    assert tidy_errands(bench.db) == 1
    thread.join(60)
    assert not thread.is_alive()
    view = bench.see(errand_id)
    assert (view.state, view.tries, bench.count("lease_lost")) == (ErrandState.WAITING, 1, 1)


def test_the_process_of_one_that_is_cancelled_is_ended(bench: Bench) -> None:
    unwanted, good = bench.ask(fault="hang"), bench.ask(answer=ANSWER)
    thread = threading.Thread(target=bench.desk(errand_seconds=600).work)
    thread.start()
    wait_until(lambda: bench.see(unwanted).state is ErrandState.RUNNING, 60, lambda: "it is not taken")
    cancel_errand(bench.db, ANN, unwanted)
    thread.join(60)
    assert not thread.is_alive()
    view = bench.see(unwanted)
    assert (view.state, view.preview, bench.count("cancelled")) == (ErrandState.CANCELLED, None, 1)
    assert bench.see(good).state is ErrandState.SUCCEEDED, "the desk goes on"


@pytest.fixture
def spare() -> Iterator[Spare]:
    """A process that waits."""
    made = Spare([*ENGINE_COMMAND, "wait"], os.environ)
    made.keep()
    yield made
    made.close()


def test_a_waiting_process_does_it(bench: Bench, spare: Spare) -> None:
    errand_id = bench.ask(fault="exit_7", answer=ANSWER)
    pid = spare.pid
    bench.desk(spare, engine_command=["/nowhere/engine"]).work()
    error = bench.see(errand_id).error
    assert error is not None
    assert f"process {pid}" in error.log_tail
    assert spare.pid is None, "one process, one errand"


def test_one_that_is_killed_as_it_takes_the_errand_costs_nothing(bench: Bench, spare: Spare) -> None:
    errand_id = bench.ask(answer=ANSWER)
    os.kill(spare.pid or 0, signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, (spare.pid, signal.SIGKILL))
    killer.start()
    bench.desk(spare).work()
    killer.join()
    assert bench.see(errand_id).state is ErrandState.SUCCEEDED


@pytest.mark.slow
def test_a_worker_does_them_while_all_its_slots_are_taken(sqlite_url: str, tmp_path: Path) -> None:
    with stack(tmp_path / "home", sqlite_url) as installed:
        bench = Bench(installed.db, tmp_path)
        job_id = submit_script(installed.db, steps=10_000, step_seconds=0.05)
        installed.start_worker(errand_poll_seconds=0.2)
        wait_for_step(installed.db, job_id, 1)
        errand_id = bench.ask(answer=ANSWER)
        wait_until(lambda: bench.see(errand_id).done, 60, installed.logs)
        assert bench.see(errand_id).state is ErrandState.SUCCEEDED
