"""Lists of what a job has left behind come by page: nothing twice, nothing left out, whatever happens between pages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.lifecycle import Claim
from ppo_engine.events import StepDone
from tests.support.attempts import checkpoint, claimed, record_steps, sample, started, submitted
from tests.support.http_api import App
from tests.support.problem_json import problem


@pytest.fixture
def held(app: App) -> Claim:
    """A job that runs and has reported three steps."""
    db = app.context.db
    held = claimed(db, submitted(db, LOCAL))
    lifecycle.record_started(db, held.lease, started())
    record_steps(db, held, 1, 3)
    return held


def walked(app: App, held: Claim, what: str, **params: Any) -> list[list[dict[str, Any]]]:
    """The pages of a list, to its end."""
    path, pages = f"/v1/jobs/{held.lease.job_id}/{what}", []
    while True:
        answer = app.get(path, params=params)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        params["page_token"] = answer.json()["next_page_token"]
        if params["page_token"] is None:
            return pages


def token(values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def test_events_come_by_page_and_pollers_go_on_behind_the_last(app: App, held: Claim):
    pages = walked(app, held, "events", limit=2)
    assert [[event["seq"] for event in page] for page in pages] == [[1, 2], [3]]
    lifecycle.record_checkpoint(app.context.db, held.lease, checkpoint(3))
    assert [[event["seq"] for event in page] for page in walked(app, held, "events", after_seq=3)] == [[4]]
    pages = walked(app, held, "events", limit=1, after_seq=2)
    assert [[event["seq"] for event in page] for page in pages] == [[3], [4]]


def test_checkpoints_come_by_page_oldest_first(app: App, held: Claim):
    db = app.context.db
    for step in (2, 3):
        lifecycle.record_checkpoint(db, held.lease, checkpoint(step))
    pages = walked(app, held, "checkpoints", page_size=1)
    assert [[found["step"] for found in page] for page in pages] == [[2], [3]]
    assert [len(page) for page in walked(app, held, "checkpoints", page_size=10_000)] == [2]


ROWS = [("a", 0.1, 2.0, 2), ("b", -1.0, None, 1), ("c", 0.1, -0.5, 3), ("d", 1 / 3, None, 3), ("e", 0.1, 2.0, 1)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("index", "abcde"), ("score", "baced"), ("-score", "daceb"), ("kl", "caebd"), ("-kl", "aecbd"),
        ("response_tokens", "beacd"), ("-response_tokens", "cdabe"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("limit", [1, 2])
def test_samples_come_by_page_in_every_order(app: App, held: Claim, sort: str, expected: str, limit: int):
    samples = [
        sample(name).model_copy(update={"score": score, "kl": kl, "response_tokens": tokens})
        for name, score, kl, tokens in ROWS
    ]
    lifecycle.record_step(app.context.db, held.lease, StepDone(step=4, scalars={}, samples=samples))
    pages = walked(app, held, "samples", sort=sort, limit=limit)
    assert [len(page) for page in pages] == [limit] * (5 // limit) + [1] * (5 % limit)
    assert "".join(row["response"] for page in pages for row in page) == expected


def test_pages_of_samples_stay_with_the_step_that_they_began_with(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/samples"
    first = app.get(path, params={"limit": 1}).json()
    record_steps(app.context.db, held, 4, 4)
    second = app.get(path, params={"limit": 1, "page_token": first["next_page_token"]}).json()
    assert [row["response"] for row in (*first["items"], *second["items"])] == ["3a", "3b"]
    assert second["next_page_token"] is None
    for other in ({"step": 2}, {"sort": "score"}, {"evaluation": "true"}):
        document = problem(
            app.get(path, params={"page_token": first["next_page_token"], **other}), 400, "invalid_argument"
        )
        assert "of another list" in document["detail"]


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("events", "x"),
        ("events", "\x00"),
        ("events", "é"),
        ("events", token("event_99999999999999999999")),
        ("events", "c3RlcF8x"),  # of checkpoints
        ("checkpoints", "ZXZlbnRfMQ"),  # of events
        ("checkpoints", "c3RlcF8tMQ"),
        ("samples", ""),
        ("samples", "c3RlcF8x"),
        ("samples", token([1, 0, 0, None])),
        ("samples", token([-1, 0, 0, None, "index"])),
        ("samples", token([2**63, 0, 0, None, "index"])),
        ("samples", token([1, 0, 2**63, None, "index"])),
        ("samples", token([1, "0", 0, None, "index"])),
        ("samples", token([1, 0, [0], None, "index"])),
        ("samples", token({"step": 1})),
    ],
)
def test_a_token_that_was_not_given_out_is_refused(refusing: App, what: str, given: str):
    job_id = submitted(refusing.context.db, LOCAL)
    answer = refusing.get(f"/v1/jobs/{job_id}/{what}", params={"page_token": given})
    assert "page_token" in problem(answer, 400, "invalid_argument")["detail"]
