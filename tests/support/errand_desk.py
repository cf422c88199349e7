"""Errands done by the real engine code in the test's own process: a worker without a process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.db import Database
from jobs.errand_work import answer_errand, claim_errand, fail_errand
from jobs.lifecycle import beat_worker
from jobs.views import JobError
from ppo_engine.errors import EngineError
from ppo_engine.program.errand import Setting, do_errand


def alive(db: Database, *, queues: tuple[str, ...] = ("default",), errands: bool = True) -> None:
    """Say that a worker is alive."""
    beat_worker(db, "desk", host="here", metrics_url=None, slots=1, busy=0, queues=queues, errands=errands)


def do_next(db: Database, home: Path) -> bool:
    """Do the errand that waits longest; whether there was one."""
    claim = claim_errand(db, worker_id="desk", queues=["default"], lease_seconds=60)
    if claim is None:
        return False
    request = home / f"{claim.id}.json"
    request.write_text(json.dumps(claim.request))
    setting = Setting(roots=[home / "models"], runs=home / "runs", threads=1)
    try:
        answer_errand(db, claim, do_errand(claim.kind, request, setting).answer)
    except EngineError as error:
        facts = {"code": error.code, "category": error.category, "message": error.message, "suggestion": error.advice}
        fail_errand(db, claim, JobError(**facts, attempt=claim.tries))
    return True


@contextmanager
def desk(db: Database, home: Path) -> Iterator[None]:
    """A worker that does errands for as long as the block lasts."""
    alive(db)
    stopped = threading.Event()

    def work() -> None:
        while not stopped.wait(0.02):
            do_next(db, home)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    stopped.set()
    thread.join(30)
