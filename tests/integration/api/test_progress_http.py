"""Events, metrics, samples, logs and checkpoints over HTTP."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.lifecycle import Claim
from ppo_engine.events import CheckpointSaved, StepDone
from tests.support.attempts import claimed, record_steps, sample, started, submitted
from tests.support.http_api import App
from tests.support.problem_json import pointers, problem


@pytest.fixture
def held(app: App) -> Claim:
    """A job that runs and has reported three steps."""
    db = app.context.db
    held = claimed(db, submitted(db, LOCAL))
    lifecycle.record_started(db, held.lease, started())
    record_steps(db, held, 1, 3)
    return held


def test_events_are_listed_behind_a_place(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/events"
    events = app.get(path).json()["items"]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert [event["type"] for event in events] == ["submitted", "claimed", "started"]
    assert app.get(path, params={"after_seq": 1, "limit": 1}).json()["items"] == events[1:2]


def test_metrics_are_columns(app: App, held: Claim):
    metrics = app.get(f"/v1/jobs/{held.lease.job_id}/metrics").json()
    assert metrics["steps"] == [1, 2, 3]
    assert metrics["series"]["ppo/mean_scores"] == pytest.approx([0.1, 0.2, 0.3])
    assert not metrics["downsampled"]


def test_metrics_are_chosen_by_key_step_and_number(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/metrics"
    both = app.get(path, params={"keys": "ppo/mean_scores,time/ppo/total", "from_step": 2}).json()
    repeated = app.get(path, params={"keys": ["ppo/mean_scores", "time/ppo/total"], "from_step": 2}).json()
    assert both == repeated
    assert (both["steps"], set(both["series"])) == ([2, 3], {"ppo/mean_scores", "time/ppo/total"})
    thin = app.get(path, params={"max_points": 2}).json()
    assert thin["downsampled"]
    assert thin["steps"][-1] == 3


def test_samples_of_an_evaluation_are_chosen(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/samples"
    answers = [sample("train"), sample("test").model_copy(update={"evaluation": True})]
    lifecycle.record_step(app.context.db, held.lease, StepDone(step=4, scalars={}, samples=answers))

    def responses(**params: str | int) -> list[tuple[str, bool]]:
        return [(row["response"], row["evaluation"]) for row in app.get(path, params=params).json()["items"]]

    assert responses() == [("train", False), ("test", True)]
    assert responses(evaluation="true") == [("test", True)]
    assert responses(evaluation="false") == [("train", False)]
    assert responses(evaluation="true", step=3) == []
    problem(app.get(path, params={"evaluation": "perhaps"}), 400, "invalid_argument")


def test_metrics_as_csv_say_the_same(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/metrics"
    response = app.get(path, params={"format": "csv"})
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    series = app.get(path).json()["series"]
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert {key: [float(row[key]) for row in rows] for key in series} == series


def test_an_unknown_metric_is_told_the_nearest_key(app: App, held: Claim):
    response = app.get(f"/v1/jobs/{held.lease.job_id}/metrics?keys=objective/kll")
    document = problem(response, 400, "invalid_argument")
    assert pointers(document) == {"/keys": "unknown_metric"}
    assert document["errors"][0]["suggestion"] == "objective/kl"


def test_samples_are_those_of_the_last_step_or_of_another(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/samples"
    assert [sample["response"] for sample in app.get(path).json()["items"]] == ["3a", "3b"]
    first = app.get(path, params={"step": 1, "limit": 1}).json()["items"]
    assert [(sample["step"], sample["response"], sample["score"]) for sample in first] == [(1, "1a", 0.5)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (None, "abc"), ("index", "abc"), ("score", "bca"), ("-score", "acb"),
        ("kl", "cab"), ("-kl", "acb"), ("response_tokens", "bac"), ("-response_tokens", "cab"),
    ],
)  # fmt: skip
def test_samples_are_sorted_with_those_without_a_value_last(app: App, held: Claim, sort: str | None, expected: str):
    rows = [("a", 0.9, 2.0, 2), ("b", -1.0, None, 1), ("c", 0.5, -0.5, 3)]
    samples = [
        sample(name).model_copy(update={"score": score, "kl": kl, "response_tokens": tokens})
        for name, score, kl, tokens in rows
    ]
    lifecycle.record_step(app.context.db, held.lease, StepDone(step=4, scalars={}, samples=samples))
    found = app.get(f"/v1/jobs/{held.lease.job_id}/samples", params={} if sort is None else {"sort": sort}).json()
    assert "".join(row["response"] for row in found["items"]) == expected


def test_another_order_of_samples_is_refused(app: App, held: Claim):
    path = f"/v1/jobs/{held.lease.job_id}/samples"
    problem(app.get(path, params={"sort": "prompt"}), 400, "invalid_argument")


def test_logs_are_the_end_of_the_attempts_log(app: App, held: Claim):
    folder = app.context.settings.run_dir(held.lease.job_id)
    folder.root.mkdir(parents=True)
    folder.log(1).write_text("one\ntwo\nthree\n")
    logs = app.get(f"/v1/jobs/{held.lease.job_id}/logs", params={"tail": 2}).json()
    assert logs == {"attempt": 1, "lines": ["two", "three"], "truncated": True}


FILES = {
    "model/config.json": b"{}",
    "model/model.safetensors": bytes(range(256)) * 9000,
    "state.json": b'{"step": 3}',
    "empty": b"",
}


def saved_checkpoint(app: App, held: Claim) -> Path:
    """A checkpoint of step 3, on disk and in the database."""
    path = "checkpoints/step-00000003-1"
    folder = app.context.settings.run_dir(held.lease.job_id).root / path
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    digests = {name: {"size_bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for name, b in FILES.items()}
    manifest = json.dumps({"files": digests}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    event = CheckpointSaved(step=3, path=path, size_bytes=1, sha256=hashlib.sha256(manifest).hexdigest())
    lifecycle.record_checkpoint(app.context.db, held.lease, event)
    return folder


def test_a_checkpoint_comes_back_byte_by_byte(app: App, held: Claim):
    folder = saved_checkpoint(app, held)
    (folder / "link").symlink_to("/etc/hostname")
    (listed,) = app.get(f"/v1/jobs/{held.lease.job_id}/checkpoints").json()["items"]
    response = app.get(listed["links"]["archive"])
    assert response.headers["content-type"] == "application/x-tar"
    assert int(response.headers["content-length"]) == len(response.content)
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    assert hashlib.sha256(found.pop("manifest.json")).hexdigest() == listed["sha256"]
    assert response.headers["x-checkpoint-sha256"] == listed["sha256"]
    assert found == FILES


def test_a_checkpoint_that_is_gone_is_not_found(app: App, held: Claim):
    archive = f"/v1/jobs/{held.lease.job_id}/checkpoints/3/archive"
    problem(app.get(archive), 404, "not_found")
    folder = saved_checkpoint(app, held)
    for file in sorted(folder.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    problem(app.get(archive), 404, "not_found")


@pytest.mark.parametrize(
    "tail",
    [
        "events?after_seq=-1",
        "events?limit=0",
        "events?limit=x",
        "events?aftr_seq=1",
        "metrics?max_points=1",
        "metrics?from_step=-1",
        "metrics?format=xml",
        "metrics?keys=a%00",
        "samples?step=x",
        "samples?limit=100000",
        "logs?tail=0",
        "logs?attempt=99",
        "checkpoints?x=1",
        "checkpoints/x/archive",
        "checkpoints/99999999999999999999/archive",
    ],
)
def test_unusable_parameters_are_refused(refusing: App, tail: str):
    job_id = submitted(refusing.context.db, LOCAL)
    document = problem(refusing.get(f"/v1/jobs/{job_id}/{tail}"), 400, "invalid_argument")
    assert len(document["errors"]) == 1
