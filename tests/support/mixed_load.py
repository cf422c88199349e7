"""`python -m tests.support.mixed_load URL JOB SECONDS INDEX SEED`: what front doors and workers do, as fast as it goes.

Prints as JSON how often it did what, and how often the database refused it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from jobs import service
from jobs.db import Database
from jobs.errors import EtagMismatch, Unavailable
from jobs.lifecycle import claim, due_wakeups, heartbeat, reap, record_step, requeue, succeed
from jobs.updating import JobPatch
from tests.support.attempts import ANN, record_steps_and_checkpoint, step, submitted

COUNTER = "additions"
PATIENT = {"max_attempts": 100}


class Load:
    """One process on the database."""

    def __init__(self, url: str, shared: str, index: int, seed: int) -> None:
        self.db, self.shared, self.worker_id = Database(url), shared, f"w{index}"
        self.dice = random.Random(f"{seed} {index}")
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> Counter[str]:
        """Do one thing after the other for so long, and at least 30; returns how often each was done."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or self.done.total() < 30:
            (what,) = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            try:
                what(self)
            except Unavailable as error:
                self.done["refused"] += 1
                print(f"{what.__name__}: {error.__cause__!r}", file=sys.stderr)
        self.db.dispose()
        return self.done

    def submit(self) -> None:
        submitted(self.db, ppo__steps=3, retry=PATIENT)
        self.done["submit"] += 1

    def read(self) -> None:
        for job in service.list_jobs(self.db, ANN, page_size=5).items:
            service.events(self.db, ANN, job.id)
        self.done["read"] += 1

    def add(self) -> None:
        """Count one more, unless somebody else has since the number was read."""
        job = service.get(self.db, ANN, self.shared)
        patch = JobPatch(labels={COUNTER: str(int(job.labels.get(COUNTER, "0")) + 1)})
        try:
            service.update(self.db, ANN, self.shared, patch, etags=frozenset({job.etag}))
        except EtagMismatch:
            self.done["overtaken"] += 1
        else:
            self.done["add"] += 1

    def work(self) -> None:
        """An attempt that ends well, is given back, or is forgotten with a lease that has run out."""
        forgets = self.dice.random() < 0.1
        held = claim(self.db, worker_id=self.worker_id, queues=["default"], lease_seconds=-1 if forgets else 600)
        if held is None or forgets:
            self.done["forget"] += held is not None
            return
        heartbeat(self.db, held.lease, lease_seconds=600)
        if held.checkpoint is None:
            record_steps_and_checkpoint(self.db, held, 1, 2)
        if self.dice.random() < 0.3:
            requeue(self.db, held.lease, error=None, charge=False)
            self.done["give back"] += 1
            return
        record_step(self.db, held.lease, step(3))
        succeed(self.db, held.lease)
        self.done["end"] += 1

    def tidy(self) -> None:
        self.done["reap"] += len(reap(self.db))
        due_wakeups(self.db, every_seconds=0)


WEIGHTS: dict[Callable[[Load], None], float] = {Load.submit: 1, Load.read: 2, Load.add: 3, Load.work: 3, Load.tidy: 1}


if __name__ == "__main__":
    url, shared, seconds, index, seed = sys.argv[1:]
    print(json.dumps(Load(url, shared, int(index), int(seed)).run(float(seconds))))
