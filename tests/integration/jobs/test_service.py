"""The front door's use cases: submit once, see only your own, page without gaps, cancel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.clock import db_time
from jobs.db import Database
from jobs.errors import (
    IdempotencyConflict,
    IllegalTransition,
    InvalidArgument,
    InvalidSpec,
    JobNotFound,
)
from jobs.fleet import beat_worker, forget_worker
from jobs.lifecycle import claim, record_checkpoint, requeue, succeed
from jobs.service import (
    cancel,
    checkpoint_dir,
    checkpoints,
    count_by_state,
    events,
    get,
    list_jobs,
    logs,
    metrics,
    queue_ages,
    resume,
    samples,
    submit,
    workers,
)
from jobs.states import JobState
from jobs.tables import Job
from jobs.views import JobView, Page
from ppo_engine.rundir import RunDir
from tests.support.attempts import ANN, BOB, checkpoint, claimed, job_in, record_steps, submitted
from tests.support.invariants import check_invariants
from tests.support.specs import make_spec

# --- submit -------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_shown_whole(database: Database) -> None:
    spec = make_spec(labels={"team": "demo"})
    view, created = submit(database, ANN, spec, roots=[])
    assert created
    assert view == get(database, ANN, view.id)
    assert (view.state, view.done, view.allowed_actions) == (JobState.QUEUED, False, ["cancel", "pause"])
    assert (view.spec, view.labels, view.max_attempts) == (spec.document(), {"team": "demo"}, 3)
    assert (view.progress.step, view.progress.steps_total, view.progress.percent) == (0, 5, 0.0)
    assert (view.start_time, view.end_time, view.error, view.attempt) == (None, None, None, 0)
    assert view.links["self"] == f"/v1/jobs/{view.id}"
    assert view.create_time.utcoffset() is not None
    assert [event.type for event in events(database, ANN, view.id)] == ["submitted"]


def test_the_same_request_makes_one_job(database: Database) -> None:
    first, created = submit(database, ANN, make_spec(), roots=[], request_id="r1")
    again, created_again = submit(database, ANN, make_spec(), roots=[], request_id="r1")
    assert (created, created_again, again.id) == (True, False, first.id)
    other, _ = submit(database, BOB, make_spec(), roots=[], request_id="r1")
    assert other.id != first.id


def test_a_reused_key_with_another_spec_is_refused(database: Database) -> None:
    submit(database, ANN, make_spec(), roots=[], request_id="r1")
    with pytest.raises(IdempotencyConflict):
        submit(database, ANN, make_spec(seed=1), roots=[], request_id="r1")


@pytest.mark.parametrize("request_id", ["", "a" * 256, "two words", "naïve", "nul\x00"])
def test_an_unusable_key_is_refused(sqlite_url: str, request_id: str) -> None:
    with pytest.raises(InvalidArgument):
        submit(Database(sqlite_url), ANN, make_spec(), roots=[], request_id=request_id)


def test_every_path_must_be_there_and_of_its_kind(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "prompts.txt").write_text("The movie was\n")
    (tmp_path / "model.gguf").write_text("weights")
    spec = make_spec(
        model={
            "policy": {"path": "absent"},
            "adapter": {"path": "model"},
            "reference": {"source": {"path": "../etc"}},
            "value": {"separate": {"source": {"path": "empty"}}},
        },
        prompts={"file": {"path": "empty"}},
        ptx={"texts": {"file": {"path": "model"}}},
        evaluation={"prompts": {"file": {"path": "absent.txt"}}},
        rewards=[
            {"name": "a", "model": {"source": {"path": "empty"}}},
            {"name": "b", "model": {"source": {"path": "model"}}},
        ],
    )
    db = Database(sqlite_url)
    with pytest.raises(InvalidSpec) as caught:
        submit(db, ANN, spec, roots=[tmp_path])
    assert [problem.pointer for problem in caught.value.problems] == [
        "/model/policy/path",
        "/model/reference/source/path",
        "/model/value/separate/source/path",
        "/rewards/0/model/source/path",
        "/model/adapter/path",
        "/prompts/file/path",
        "/ptx/texts/file/path",
        "/evaluation/prompts/file/path",
    ]
    for model in ("model", "model.gguf"):
        good = make_spec(model={"policy": {"path": model}}, prompts={"file": {"path": "prompts.txt"}})
        assert submit(db, ANN, good, roots=[tmp_path])[1]


# --- whose --------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Database, str], Any]] = {
    "get": lambda db, job: get(db, BOB, job),
    "cancel": lambda db, job: cancel(db, BOB, job),
    "resume": lambda db, job: resume(db, BOB, job),
    "events": lambda db, job: events(db, BOB, job),
    "metrics": lambda db, job: metrics(db, BOB, job),
    "samples": lambda db, job: samples(db, BOB, job).items,
    "checkpoints": lambda db, job: checkpoints(db, BOB, job).items,
    "checkpoint_dir": lambda db, job: checkpoint_dir(db, BOB, job, 2, Path("runs")),
    "logs": lambda db, job: logs(db, BOB, job, Path("runs")),
}


def test_another_owners_job_is_as_absent_as_one_that_never_was(database: Database) -> None:
    job_id = submitted(database)
    record_steps(database, claimed(database, job_id), 1, 2)
    said = set()
    for read in READS.values():
        for target in (job_id, "job_" + "0" * 26, "no id at all"):
            with pytest.raises(JobNotFound) as caught:
                read(database, target)
            said.add((caught.value.code, caught.value.message.replace(" of step 2", "")))
    assert len(said) == 1
    assert list_jobs(database, BOB).items == []
    assert get(database, ANN, job_id).cancel_request_time is None


# --- pages --------------------------------------------------------------------------------------------------------


def pages(db: Database, **filters: Any) -> list[Page[JobView]]:
    """All pages of a list, and between any two a new job."""
    found = [list_jobs(db, ANN, **filters)]
    while found[-1].next_page_token is not None:
        submitted(db)
        found.append(list_jobs(db, ANN, page_token=found[-1].next_page_token, **filters))
    return found


def test_pages_hold_every_job_once_newest_first_while_new_ones_come(database: Database) -> None:
    ids = [submitted(database) for _ in range(7)]
    submitted(database, BOB)
    found = pages(database, page_size=3)
    assert [len(page.items) for page in found] == [3, 3, 1]
    assert [view.id for page in found for view in page.items] == ids[::-1]


def test_a_full_last_page_has_no_successor(database: Database) -> None:
    ids = [submitted(database) for _ in range(4)]
    found = pages(database, page_size=2)
    assert [view.id for page in found for view in page.items] == ids[::-1]
    assert len(found) == 2


def test_filters_by_state_and_label(database: Database) -> None:
    both = submitted(database, labels={"team": "a", "run": "1"})
    one = submitted(database, labels={"team": "a"})
    submitted(database, labels={"team": "b", "run": "1"})
    claimed(database, one)

    def ids(**filters: Any) -> list[str]:
        return [view.id for view in list_jobs(database, ANN, **filters).items]

    assert ids(labels={"team": "a"}) == [one, both]
    assert ids(labels={"team": "a", "run": "1"}) == [both]
    assert ids(labels={"team": "A"}) == []
    assert ids(states=[JobState.RUNNING]) == [one]
    assert ids(states=[JobState.RUNNING, JobState.QUEUED], labels={"team": "a"}) == [one, both]


@pytest.mark.parametrize("token", ["", "x", "!!!!", "am9iXzA", "naïve", "a" * 10_000])
def test_a_made_up_page_token_is_refused(sqlite_url: str, token: str) -> None:
    with pytest.raises(InvalidArgument):
        list_jobs(Database(sqlite_url), ANN, page_token=token)


@pytest.mark.parametrize("size", [0, -1])
def test_a_page_has_at_least_one_job(sqlite_url: str, size: int) -> None:
    with pytest.raises(InvalidArgument):
        list_jobs(Database(sqlite_url), ANN, page_size=size)


# --- cancel -------------------------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once(database: Database) -> None:
    view = cancel(database, ANN, submitted(database))
    assert (view.state, view.stop_reason, view.done) == (JobState.CANCELLED, "cancelled", True)
    assert view.cancel_request_time is not None
    assert claim(database, worker_id="w", queues=["default"], lease_seconds=60) is None
    check_invariants(database, ended=True)


def test_a_running_job_is_asked_once(database: Database) -> None:
    job_id, _ = job_in(database, JobState.RUNNING)
    first = cancel(database, ANN, job_id)
    again = cancel(database, ANN, job_id)
    assert first.state is JobState.RUNNING
    assert first.cancel_request_time is not None
    assert again.cancel_request_time == first.cancel_request_time
    assert [event.type for event in events(database, ANN, job_id)].count("cancel_requested") == 1


def test_cancelling_twice_is_fine_and_cancelling_the_ended_is_not(database: Database) -> None:
    job_id, _ = job_in(database, JobState.CANCELLED)
    assert cancel(database, ANN, job_id).state is JobState.CANCELLED
    for state in (JobState.SUCCEEDED, JobState.FAILED):
        job_id, _ = job_in(database, state)
        with pytest.raises(IllegalTransition) as caught:
            cancel(database, ANN, job_id)
        assert (caught.value.state, caught.value.allowed_actions) == (
            state,
            [] if state is JobState.SUCCEEDED else ["retry"],
        )


# --- history ------------------------------------------------------------------------------------------------------


def test_events_go_on_after_a_number(database: Database) -> None:
    job_id, _ = job_in(database, JobState.SUCCEEDED)
    everything = events(database, ANN, job_id)
    assert [event.seq for event in everything] == [1, 2, 3]
    assert events(database, ANN, job_id, after_seq=1) == everything[1:]
    assert events(database, ANN, job_id, after_seq=1, limit=1) == everything[1:2]
    assert events(database, ANN, job_id, after_seq=3) == []


@pytest.mark.parametrize(("points", "steps"), [(50, list(range(1, 41))), (5, [1, 11, 21, 31, 40]), (2, [1, 40])])
def test_metrics_are_thinned_evenly_and_the_last_step_is_shown(
    database: Database, points: int, steps: list[int]
) -> None:
    job_id = submitted(database, ppo__steps=40)
    record_steps(database, claimed(database), 1, 40)
    view = metrics(database, ANN, job_id, from_step=1, max_points=points)
    assert (view.steps, view.downsampled) == (steps, len(steps) < 40)
    assert view.series["ppo/mean_scores"] == pytest.approx([0.1 * number for number in steps])
    assert len(view.times) == len(steps)


def test_metrics_by_key_and_from_a_step(database: Database) -> None:
    job_id = submitted(database)
    record_steps(database, claimed(database), 1, 4)
    view = metrics(database, ANN, job_id, keys=["ppo/mean_scores", "ppo/grad_norm"], from_step=3)
    assert view.steps == [3, 4]
    assert view.series == {"ppo/mean_scores": pytest.approx([0.3, 0.4]), "ppo/grad_norm": [None, None]}
    with pytest.raises(InvalidArgument) as caught:
        metrics(database, ANN, job_id, keys=["ppo/mean_score"])
    assert caught.value.problems[0].suggestion == "ppo/mean_scores"


def test_samples_of_a_step_and_of_the_latest(database: Database) -> None:
    job_id = submitted(database)
    assert samples(database, ANN, job_id).items == []
    record_steps(database, claimed(database), 1, 3)
    assert [(view.step, view.response) for view in samples(database, ANN, job_id).items] == [(3, "3a"), (3, "3b")]
    assert [view.response for view in samples(database, ANN, job_id, step=1, limit=1).items] == ["1a"]


def test_a_checkpoint_is_found_on_disk(database: Database, tmp_path: Path) -> None:
    job_id = submitted(database)
    held = claimed(database)
    record_steps(database, held, 1, 2)
    record_checkpoint(database, held.lease, checkpoint(2))
    [view] = checkpoints(database, ANN, job_id).items
    assert (view.step, view.attempt, view.size_bytes) == (2, 1, 1000)
    with pytest.raises(JobNotFound):
        checkpoint_dir(database, ANN, job_id, 2, tmp_path)
    folder = RunDir(tmp_path / job_id).checkpoint(2, 1)
    folder.mkdir(parents=True)
    assert checkpoint_dir(database, ANN, job_id, 2, tmp_path) == folder
    with pytest.raises(JobNotFound):
        checkpoint_dir(database, ANN, job_id, 3, tmp_path)


def test_the_end_of_a_log(sqlite_url: str, tmp_path: Path) -> None:
    db = Database(sqlite_url)
    job_id = submitted(db)
    assert (logs(db, ANN, job_id, tmp_path).attempt, logs(db, ANN, job_id, tmp_path).lines) == (0, [])
    claimed(db)
    path = RunDir(tmp_path / job_id).log(1)
    path.parent.mkdir()
    path.write_text("".join(f"line {number} {'x' * 900}\n" for number in range(1000)))
    view = logs(db, ANN, job_id, tmp_path, tail=3)
    assert (view.attempt, view.truncated) == (1, True)
    assert view.lines[-1].startswith("line 999")
    path.write_bytes(b"one\ntwo \xff\n")
    view = logs(db, ANN, job_id, tmp_path, attempt=1)
    assert (view.lines, view.truncated) == (["one", "two \ufffd"], False)
    with pytest.raises(InvalidArgument):
        logs(db, ANN, job_id, tmp_path, attempt=2)


# --- queue and fleet ----------------------------------------------------------------------------------------------


def test_the_place_in_the_queue_and_why_the_job_waits(database: Database) -> None:
    ids = [submitted(database) for _ in range(3)]
    urgent = submitted(database, resources={"priority": 1})
    submitted(database, resources={"queue": "gpu"})
    places = [get(database, ANN, job_id).queue for job_id in (urgent, *ids)]
    assert [place and place.position for place in places] == [1, 2, 3, 4]
    assert {place and place.reason for place in places} == {"no worker serves the queue `default`"}

    beat_worker(database, "w1", host="h", metrics_url=None, slots=1, busy=0, queues=["default"])
    place = get(database, ANN, urgent).queue
    assert place is not None
    assert place.reason == "waiting for a free worker"


def test_workers_come_beat_and_go(database: Database) -> None:
    for busy in (0, 1):
        beat_worker(database, "w1", host="h", metrics_url="http://h:1/metrics", slots=2, busy=busy, queues=["a", "b"])
    [row] = workers(database)
    assert (row.id, row.host, row.metrics_url, row.slots, row.busy, row.queues) == (
        "w1",
        "h",
        "http://h:1/metrics",
        2,
        1,
        ["a", "b"],
    )
    forget_worker(database, "w1")
    assert workers(database) == []


def test_jobs_are_counted_by_state(database: Database) -> None:
    job_in(database, JobState.SUCCEEDED)
    job_in(database, JobState.RUNNING)
    submitted(database)
    submitted(database, BOB)
    counts = {state: count for state, count in count_by_state(database).items() if count}
    assert counts == {JobState.QUEUED: 2, JobState.RUNNING: 1, JobState.SUCCEEDED: 1}
    assert set(count_by_state(database)) == set(JobState)


def test_the_etag_follows_what_is_shown(database: Database) -> None:
    job_id = submitted(database)
    first = get(database, ANN, job_id)
    assert get(database, ANN, job_id).etag == first.etag
    held = claimed(database)
    running = get(database, ANN, job_id)
    record_steps(database, held, 1, 1)
    stepped = get(database, ANN, job_id)
    succeed(database, held.lease)
    etags = [view.etag for view in (first, running, stepped, get(database, ANN, job_id))]
    assert len(set(etags)) == 4


def test_the_oldest_wait_is_told_by_queue(database: Database) -> None:
    submitted(database, resources={"queue": "gpu"})
    old, held = submitted(database), claimed(database, submitted(database))
    back(database, old, seconds=100)
    back(database, held.lease.job_id, seconds=5000)  # it runs, and waits no more
    ages = queue_ages(database)
    assert set(ages) == {"default", "gpu"}
    assert 100 <= ages["default"] < 130
    assert 0 <= ages["gpu"] < 30
    requeue(database, held.lease, error=None, charge=False, delay_seconds=500)
    assert queue_ages(database)["default"] < 130


def back(db: Database, job_id: str, *, seconds: float) -> None:
    """As if the job could have started so long ago."""
    with db.transaction() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(not_before=db_time(-seconds)))
