"""What engines do at steps nobody chose: the right error, a free slot, and a worker that lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import service
from jobs.auth import LOCAL
from jobs.states import JobState
from tests.support.fault_runs import attempts_of
from tests.support.fault_table import Row, chance, count, row
from tests.support.invariants import check_invariants
from tests.support.stale_writes import stale_writes, watch
from tests.support.workers import LONG_LEASE, Stack, final_weights, stack, submit_script, wait_for_state, weights_after

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 6


@dataclass(frozen=True)
class Fault:
    """What the scripted engine does, and what must come of it."""

    says: str
    name: str
    code: str | None
    """Of the error that the first attempt ends with."""
    attempts: int
    state: JobState = JobState.SUCCEEDED


FAULTS = (
    Fault("out of memory", "no_memory", "out_of_memory", 2),
    Fault("segmentation fault", "segfault", "engine_crashed", 2),
    Fault("exit 7", "exit_7", "engine_crashed", 2),
    Fault("killed", "sigkill", "engine_killed", 2),
    Fault("hang", "hang", "engine_hung", 2),
    Fault("half a line, then killed", "half_line", "engine_killed", 2),
    Fault("NaN in the loss", "non_finite", "non_finite", 1, JobState.FAILED),
    Fault("NaN on the pipe", "nan", "engine_protocol", 1, JobState.FAILED),
    Fault("garbage on the pipe", "garbage", "engine_protocol", 1, JobState.FAILED),
    Fault("a line without an end", "endless_line", "engine_protocol", 1, JobState.FAILED),
    Fault("flood of log lines", "noise", None, 1),
    Fault("flood of events", "chatter", None, 1),
)


def test_engines_do_their_worst_and_the_worker_serves_on(sqlite_url: str, tmp_path: Path) -> None:
    """All kinds at once, in four slots of one worker."""
    dice = chance("engine")
    with stack(tmp_path / "home", sqlite_url) as installed:
        watch(installed.db)
        wanted = [fault for fault in FAULTS for _ in range(count(1, 10))]
        dice.shuffle(wanted)
        # From the first checkpoint on: a scripted engine that begins anew has its fault again.
        jobs = {submit_script(installed.db, fault=fault.name, at=dice.randint(2, STEPS - 1)): fault for fault in wanted}
        worker = installed.start_worker(slots=4, silence_seconds=5, **LONG_LEASE)
        for job_id in jobs:
            wait_for_state(installed.db, job_id, seconds=300)
        tables = {fault: row(f"engine: {fault.says}") for fault in FAULTS}
        for job_id, fault in jobs.items():
            judge(installed, job_id, fault, tables[fault])
        assert worker.poll() is None
        after = [submit_script(installed.db) for _ in range(4)]
        assert {wait_for_state(installed.db, job_id).state for job_id in after} == {JobState.SUCCEEDED}
        check_invariants(installed.db, ended=True)


def judge(installed: Stack, job_id: str, fault: Fault, table: Row) -> None:
    """Compare what became of the job with what must come of the fault."""
    job = service.get(installed.db, LOCAL, job_id)
    first, *others = [attempt for attempt in attempts_of(installed.db) if attempt.job_id == job_id]
    table.injected += 1
    table.jobs += 1
    table.lost += job.state is not fault.state
    table.doubled += job.attempt > fault.attempts
    table.stale = stale_writes(installed.db)
    code = None if first.error is None else first.error["code"]
    assert (job.state, code, 1 + len(others)) == (fault.state, fault.code, fault.attempts), (fault, installed.logs())
    if fault.state is JobState.SUCCEEDED:
        assert final_weights(installed.run_dir(job_id)) == weights_after(STEPS), fault
    assert first.ready_time is not None
    assert first.end_time is not None
    # The steps before the fault take hundredths of a second.
    table.recovery_seconds.append((first.end_time - first.ready_time).total_seconds())
    assert table.stale == 0
