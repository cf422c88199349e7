"""Retries and forks: what the new job is, what it takes over, and that the old job keeps it until then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.db import Database
from jobs.errors import IdempotencyConflict, IllegalTransition, InvalidSpec, JobNotFound
from jobs.forking import ForkRequest, fork, merge_patched, retry
from jobs.lifecycle import Claim, record_checkpoint, record_inheritance, record_step, succeed
from jobs.service import cancel, checkpoints, get, update
from jobs.states import JobState
from jobs.updating import JobPatch
from jobs.views import JobView
from tests.support.attempts import ANN, BOB, checkpoint, claimed, job_in, record_steps, step, submitted
from tests.support.invariants import check_invariants

NOWHERE: list[Path] = []


def forked(
    db: Database, job_id: str, from_step: Any = "last", request_id: str | None = None, **overrides: Any
) -> JobView:
    request = ForkRequest(from_step=from_step, overrides=overrides)
    return fork(db, ANN, job_id, request, roots=NOWHERE, request_id=request_id)[0]


def trained(db: Database, **overrides: Any) -> tuple[str, Claim]:
    """A running job with checkpoints of steps 1 and 2, of which it keeps the last."""
    job_id = submitted(db, checkpoint={"every_steps": 1, "keep_last": 2}, **overrides)
    held = claimed(db, job_id)
    for number in (1, 2):
        record_steps(db, held, number, number)
        record_checkpoint(db, held.lease, checkpoint(number, score=float(-number)))
    return job_id, held


# --- retry --------------------------------------------------------------------------------------------------------


def test_a_retry_is_the_same_spec_again_once(database: Database) -> None:
    job_id, _ = job_in(database, JobState.FAILED)
    update(database, ANN, job_id, JobPatch(name="renamed", labels={"team": "b"}))
    first, created = retry(database, ANN, job_id, roots=NOWHERE)
    again, twice = retry(database, ANN, job_id, roots=NOWHERE)
    assert (created, twice, again.id) == (True, False, first.id)
    assert (first.state, first.name, first.labels, first.progress.step) == (
        JobState.QUEUED,
        "renamed",
        {"team": "b"},
        0,
    )
    assert first.parent is not None
    assert (first.parent.job_id, first.parent.step, first.parent.carried) == (job_id, None, [])
    other, created = retry(database, ANN, job_id, roots=NOWHERE, request_id="a-key")
    assert created
    assert other.id not in (first.id, job_id)
    assert get(database, ANN, job_id).state is JobState.FAILED
    check_invariants(database)


def test_only_what_failed_or_was_cancelled_is_retried(database: Database) -> None:
    for state in (JobState.QUEUED, JobState.PAUSED, JobState.SUCCEEDED, JobState.RUNNING):
        job_id, _ = job_in(database, state)
        with pytest.raises(IllegalTransition) as caught:
            retry(database, ANN, job_id, roots=NOWHERE)
        assert caught.value.state == state
        assert "retry" not in caught.value.allowed_actions
    job_id, _ = job_in(database, JobState.CANCELLED)
    assert get(database, ANN, job_id).allowed_actions == ["retry"]
    with pytest.raises(JobNotFound):
        retry(database, BOB, job_id, roots=NOWHERE)


# --- fork ---------------------------------------------------------------------------------------------------------


def test_a_fork_goes_on_behind_the_checkpoint(database: Database) -> None:
    job_id, _ = trained(database)
    assert "fork" in get(database, ANN, job_id).allowed_actions
    view = forked(database, job_id, optimizer={"learning_rate": 1e-6})
    assert view.parent is not None
    assert (view.parent.job_id, view.parent.step) == (job_id, 2)
    assert "training" in view.parent.carried
    assert (view.progress.step, view.progress.percent, view.spec["optimizer"]["learning_rate"]) == (2, 40.0, 1e-6)
    held = claimed(database, view.id)
    assert held.checkpoint is None
    assert held.inherited is not None
    assert (held.inherited.path, held.inherited.begins_at) == ("checkpoints/step-00000002-1", 2)
    path = "checkpoints/step-00000002-0"
    for _ in range(2):
        record_inheritance(database, held.lease, path, 1000)
    assert [(found.step, found.attempt) for found in checkpoints(database, ANN, view.id).items] == [(2, 0)]
    record_step(database, held.lease, step(3))
    check_invariants(database)


@pytest.mark.parametrize(
    ("overrides", "lost"),
    [
        ({}, set()),
        ({"kl": {"init_kl_coef": 0.5}}, {"kl"}),
        ({"rewards": [{"name": "length", "rule": {"name": "length", "params": {"target": 4}}}]}, {"scores"}),
        ({"prompts": {"inline": ["Once"]}}, {"prompts"}),
        ({"seed": 7}, {"prompts", "texts", "random"}),
        ({"guards": [{"metric": "objective/kl", "above": 9, "action": "warn"}]}, {"oversight"}),
        ({"ppo": {"steps": 9}, "generation": {"max_new_tokens": 9}, "labels": {"a": "b"}}, set()),
        ({"model": {"gradient_checkpointing": True}}, set()),
    ],
)
def test_a_fork_says_what_it_does_not_take_over(database: Database, overrides: dict[str, Any], lost: set[str]) -> None:
    job_id, _ = trained(database)
    parent = forked(database, job_id, **overrides).parent
    assert parent is not None
    everything = {"weights", "training", "critic", "kl", "scores", "prompts", "texts", "random", "oversight"}
    assert everything - set(parent.carried) == lost


def test_another_critic_or_reference_leaves_the_weights_and_step_0(database: Database) -> None:
    job_id, _ = trained(database)
    for model, carried in (
        ({"reference": {"source": {"hub": "org/other"}}}, ["weights", "critic"]),
        ({"value": {"shared": None, "separate": {}}}, ["weights"]),
    ):
        view = forked(database, job_id, model=model)
        assert view.parent is not None
        assert (view.parent.carried, view.progress.step, view.parent.step) == (carried, 0, 2)


def test_a_fork_that_its_checkpoint_does_not_fit_is_refused(database: Database) -> None:
    job_id, _ = trained(database)
    for overrides, place in (
        ({"model": {"policy": {"hub": "org/other"}}}, "/model/policy"),
        ({"model": {"lora": {"rank": 4}}}, "/model/lora"),
        ({"ppo": {"steps": 2}}, "/ppo/steps"),
        ({"ppo": {"stpes": 2}}, "/ppo/stpes"),
        ({"rewards": None}, "/rewards"),
    ):
        with pytest.raises(InvalidSpec) as caught:
            forked(database, job_id, **overrides)
        assert place in [problem.pointer for problem in caught.value.problems]
    for missing in (5, 0, -1, 2**70):
        with pytest.raises(JobNotFound):
            forked(database, job_id, missing)
    with pytest.raises(JobNotFound):
        forked(database, submitted(database))
    with pytest.raises(JobNotFound):
        fork(database, BOB, job_id, ForkRequest(), roots=NOWHERE)


def test_best_and_a_number_name_their_checkpoints(database: Database) -> None:
    job_id, _ = trained(database)
    steps = [view.parent.step for place in ("best", 1, "last", 2) if (view := forked(database, job_id, place)).parent]
    assert steps == [1, 1, 2, 2]


def test_a_key_makes_one_fork_and_belongs_to_one_parent(database: Database) -> None:
    job_id, _ = trained(database)
    one = forked(database, job_id, request_id="k")
    assert forked(database, job_id, request_id="k").id == one.id
    other, _ = trained(database)
    with pytest.raises(IdempotencyConflict):
        forked(database, other, request_id="k")


def test_the_old_job_keeps_the_checkpoint_until_it_was_taken_over(database: Database) -> None:
    job_id, held = trained(database)
    taken, given_up = forked(database, job_id, 1), forked(database, job_id, 2)
    for number in (3, 4):
        record_steps(database, held, number, number)
        assert record_checkpoint(database, held.lease, checkpoint(number)) == []
    assert [found.step for found in checkpoints(database, ANN, job_id).items] == [1, 2, 3, 4]
    claim = claimed(database, taken.id)
    record_inheritance(database, claim.lease, "checkpoints/step-00000001-0", 1000)
    cancel(database, ANN, given_up.id)
    record_steps(database, held, 5, 5)
    dropped = record_checkpoint(database, held.lease, checkpoint(5))
    assert sorted(dropped) == [f"checkpoints/step-0000000{number}-1" for number in (1, 2, 3)]
    succeed(database, held.lease)
    check_invariants(database)


def test_merge_patches_do_what_their_standard_says() -> None:
    """The examples of RFC 7396, appendix A, that have objects."""
    for target, patch, wanted in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a"], {"a": "b"}, {"a": "b"}),
    ):
        assert merge_patched(target, patch) == wanted
