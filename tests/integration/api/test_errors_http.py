"""problem+json on the paths that no route takes, and what happens when something breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import structlog

from jobs.auth import LOCAL
from jobs.db import Database
from ppo_engine.config import Preset
from tests.support.attempts import submitted
from tests.support.http_api import App, app_on, settings
from tests.support.problem_json import problem
from tests.support.servers import free_port
from tests.support.specs import spec_document


@pytest.mark.parametrize("path", ["/", "/nope", "/v1", "/v2/jobs", "/v1/jobs/", "/v1/jobs/a/b/c", "//", "/v1/%2e%2e"])
def test_unknown_paths(refusing: App, path: str):
    assert "/docs" in problem(refusing.get(path), 404, "route_not_found")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/jobs", {"GET", "POST"}),
        ("POST", "/livez", {"GET"}),
        ("POST", "/docs", {"GET"}),
        ("BREW", "/v1/jobs", {"GET", "POST"}),
    ],
)
def test_wrong_methods(refusing: App, method: str, path: str, allow: set[str]):
    response = refusing.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) == allow


def test_a_request_id_is_taken_over_or_made(refusing: App):
    assert refusing.get("/livez", headers={"X-Request-Id": "trace-7"}).headers["x-request-id"] == "trace-7"
    made = refusing.get("/nope", headers={"X-Request-Id": 'a"b <script>'})
    assert len(problem(made, 404, "route_not_found")["request_id"]) == 32


def test_every_type_leads_to_its_explanation(refusing: App):
    for row in refusing.get("/problems").json():
        assert refusing.get(row["type"]).json() == row
    problem(refusing.get("/problems/nope"), 404, "problem_not_found")


def test_a_defect_shows_an_id_and_nothing_else(app: App):
    job_id = submitted(app.context.db, LOCAL)
    with app.context.db.transaction() as session:
        session.execute(sa.text("UPDATE jobs SET spec = '\"a secret\"'"))
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        response = app.get(f"/v1/jobs/{job_id}")
    document = problem(response, 500, "internal")
    assert set(document) == {"type", "title", "status", "detail", "code", "request_id", "errors"}
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    (line,) = [line for line in lines if line["event"] == "request_failed"]
    assert line["request_id"] == document["request_id"]
    assert line["exc_info"]


def test_a_defect_in_a_stream_is_a_problem_before_its_first_line(app: App):
    job_id = submitted(app.context.db, LOCAL)
    with app.context.db.transaction() as session:
        session.execute(sa.text("UPDATE jobs SET spec = '[]'"))
    with structlog.testing.capture_logs():
        response = app.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})
    problem(response, 500, "internal")


@pytest.fixture
def away(home: Path) -> Iterator[App]:
    """The app while its database does not answer."""
    url = f"postgresql://nobody:hunter2@127.0.0.1:{free_port()}/none"
    db = Database(url)
    with app_on(db, settings(home, url)) as running:
        yield running
    db.dispose()


def test_without_its_database_the_service_says_so_and_lives(away: App):
    job = "/v1/jobs/job_" + "0" * 26
    for response in (away.get(job), away.get("/v1/jobs"), away.post("/v1/jobs", json=spec_document())):
        problem(response, 503, "unavailable")
        assert response.headers["retry-after"] == "5"
        assert "hunter2" not in response.text
        assert "127.0.0.1" not in response.text
    problem(away.get("/readyz"), 503, "unavailable")
    problem(away.get("/sd/workers"), 503, "unavailable")
    assert away.get("/livez").status_code == 200


def test_without_its_database_scrapes_stay_good_and_say_so(away: App):
    for path in ("/metrics", "/metrics/jobs"):
        page = away.get(path)
        assert page.status_code == 200
        assert "ppo_collector_up 0.0" in page.text.splitlines()
        assert "ppo_jobs{" not in page.text


def test_tables_of_another_version_are_not_ready(empty_database_url: str, home: Path):
    db = Database(empty_database_url)
    with app_on(db, settings(home, empty_database_url)) as app:
        document = problem(app.get("/readyz"), 503, "unavailable")
        assert "python -m jobs.admin migrate" in document["detail"]
    db.dispose()


def test_a_shutdown_is_not_ready(sqlite_app: App):
    assert sqlite_app.get("/readyz").json() == {"status": "ready"}
    sqlite_app.portal.call(sqlite_app.context.stopping.set)
    problem(sqlite_app.get("/readyz"), 503, "unavailable")


def test_the_document_describes_every_refusal_as_problem_json(refusing: App):
    document = refusing.get("/openapi.json").json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path, item in document["paths"].items():
        for operation in item.values():
            refusals = {status: answer for status, answer in operation["responses"].items() if status >= "4"}
            assert {"500", "503"} <= set(refusals)
            assert not path.startswith("/v1/") or "401" in refusals
            assert all(set(answer["content"]) == {"application/problem+json"} for answer in refusals.values())


def test_the_document_and_the_schema_route_agree_on_the_spec(refusing: App):
    schemas = refusing.get("/openapi.json").json()["components"]["schemas"]
    schema = refusing.get("/v1/schemas/job").json()
    assert set(schemas["JobSpec"]["properties"]) == set(schema["properties"])
    assert schema["properties"]["name"]["maxLength"] == 128


def test_capabilities_name_rules_metrics_and_limits(refusing: App):
    found = refusing.get("/v1/capabilities").json()
    assert {rule["name"] for rule in found["rules"]} >= {"sentiment", "length", "regex", "keyword", "repetition"}
    length = next(rule for rule in found["rules"] if rule["name"] == "length")
    assert length["params"]["required"] == ["target"]
    kl = next(metric for metric in found["metrics"] if metric["key"] == "objective/kl")
    assert kl == {
        "key": "objective/kl",
        "kind": "scalar",
        "unit": "nats/sequence",
        "help": "KL from the reference before the update, summed over each response.",
        "better": "down",
        "prometheus_name": "ppo_objective_kl",
    }
    assert {preset["name"] for preset in found["presets"]} == set(Preset)
    for preset in found["presets"]:
        assert preset["source"]
        assert preset["spec"]["ppo"]["gae_lambda"] == 0.95
    assert found["limits"] == {"body_bytes": 1 << 20, "dataset_bytes": 256 << 20, "page_size": 200}
