"""What Prometheus scrapes: live jobs, the process, the workers."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from jobs import lifecycle
from jobs.auth import LOCAL, Principal
from ppo_engine.events import StepDone
from ppo_engine.stats import REWARDS, SCALARS
from tests.support.attempts import claimed, submitted
from tests.support.http_api import App

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def series(app: App, path: str) -> dict[str, float]:
    """Samples of a page by name and labels, read by the OpenMetrics parser."""
    page = app.get(path, headers=OPENMETRICS)
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    found = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


@pytest.fixture
def fresh(app: App) -> App:
    """The app without its short cache of live jobs, so that a test need not wait."""
    (collector,) = app.client._transport.app.state.live_jobs._collector_to_names  # type: ignore[attr-defined]
    collector._cache_seconds = 0.0
    return app


def test_a_running_job_shows_every_statistic_and_a_finished_one_nothing(fresh: App):
    db = fresh.context.db
    job_id = submitted(db, LOCAL, name='my "first" job')
    assert job_id not in str(series(fresh, "/metrics/jobs"))
    held = claimed(db, job_id)
    scalars = {key: float(index) for index, key in enumerate(SCALARS)} | {REWARDS.key("sentiment"): 0.25}
    lifecycle.record_step(db, held.lease, StepDone(step=3, scalars=scalars))
    shown = series(fresh, "/metrics/jobs")
    for metric in SCALARS.values():
        assert shown[f"{metric.prometheus_name}{{job_id={job_id}}}"] == scalars[metric.key]
    assert shown[f"ppo_env_reward_component_mean{{component=sentiment,job_id={job_id}}}"] == 0.25
    assert shown[f"ppo_job_step{{job_id={job_id}}}"] == 3
    assert shown[f'ppo_job_info{{job_id={job_id},name=my "first" job}}'] == 1
    lifecycle.succeed(db, held.lease)
    assert job_id not in str(series(fresh, "/metrics/jobs"))


def test_a_statistic_that_was_not_reported_has_no_series(fresh: App):
    held = claimed(fresh.context.db, submitted(fresh.context.db, LOCAL))
    lifecycle.record_step(fresh.context.db, held.lease, StepDone(step=1, scalars={"objective/kl": 0.5}))
    names = {name for name in series(fresh, "/metrics/jobs") if held.lease.job_id in name}
    assert {re.sub(r"\{.*", "", name) for name in names} == {
        "ppo_job_info",
        "ppo_job_step",
        "ppo_job_update_timestamp_seconds",
        "ppo_objective_kl",
    }


def test_jobs_of_every_owner_are_shown_without_their_owner(fresh: App):
    held = [claimed(fresh.context.db, submitted(fresh.context.db, Principal(owner))) for owner in ("ann", "bob")]
    page = fresh.get("/metrics/jobs").text
    assert all(each.lease.job_id in page for each in held)
    assert "ann" not in page.replace("quantities", "")


def test_many_scrapes_read_the_database_once(app: App):
    assert "ppo_job_step{" not in app.get("/metrics/jobs").text
    claimed(app.context.db, submitted(app.context.db, LOCAL))
    assert "ppo_job_step{" not in app.get("/metrics/jobs").text


def test_the_process_counts_requests_by_route_and_jobs_by_state(app: App):
    submitted(app.context.db, LOCAL)
    app.get("/v1/jobs/job_1")
    app.get("/v1/jobs/job_2")
    app.get("/x")
    app.get("/y")
    app.request("BREW", "/livez")
    shown = series(app, "/metrics")
    assert shown["ppo_http_requests_total{method=GET,route=/v1/jobs/{job_id},status=404}"] == 2
    assert shown["ppo_http_requests_total{method=GET,route=unmatched,status=404}"] == 2
    assert shown["ppo_http_request_duration_seconds_count{method=GET,route=unmatched}"] == 2
    assert not [name for name in shown if "BREW" in name]
    assert shown["ppo_jobs{state=queued}"] == 1
    assert shown["ppo_jobs{state=running}"] == 0
    assert shown["ppo_collector_up{}"] == 1


def test_workers_are_counted_and_listed_for_discovery(app: App):
    facts = {"host": "h", "slots": 2, "busy": 1, "queues": ["default"]}
    lifecycle.beat_worker(app.context.db, "w1", metrics_url="http://10.0.0.5:9100/metrics", **facts)
    lifecycle.beat_worker(app.context.db, "w2", metrics_url=None, **facts)
    assert app.get("/sd/workers").json() == [
        {
            "targets": ["10.0.0.5:9100"],
            "labels": {"__scheme__": "http", "__metrics_path__": "/metrics", "worker": "w1"},
        }
    ]
    shown = series(app, "/metrics")
    assert shown["ppo_workers{}"] == 2
    assert (shown["ppo_slots{use=busy}"], shown["ppo_slots{use=free}"]) == (2, 2)
    lifecycle.forget_worker(app.context.db, "w1")
    assert app.get("/sd/workers").json() == []


def test_two_apps_share_no_numbers(sqlite_app: App, refusing: App):
    refusing.get("/nope")
    assert "unmatched" not in sqlite_app.get("/metrics").text
