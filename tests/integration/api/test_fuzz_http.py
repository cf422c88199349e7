"""Whatever comes, the HTTP door answers as its document says: no 5xx, no status, type or field it does not name.

`make fuzz` looks longer, on both kinds of database and with other inputs each time: PPO_FUZZ_EXAMPLES is the number for
each operation.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from docs.api_pages import openapi
from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.db import Database
from tests.support.attempts import claimed, record_steps, submitted
from tests.support.databases import copied_postgres, copy_sqlite
from tests.support.http_api import App, app_on
from tests.support.http_api import settings as api_settings

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PPO_FUZZ_EXAMPLES", "0"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LONGEST_WAIT_SECONDS = 0.01


def _document() -> dict[str, Any]:
    """The document, strict: without `default`, which would allow every status."""
    document = copy.deepcopy(openapi())
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("default", None)
    return document


schema = schemathesis.openapi.from_dict(_document())
schema.config.generation.update(modes=list(GenerationMode))
JOBS: list[str] = []


@schema.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Every second job is one that exists: otherwise nothing but 404 would be seen."""
    if path_parameters and JOBS and "job_id" in path_parameters and len(str(path_parameters["job_id"])) % 2:
        return {**path_parameters, "job_id": JOBS[len(str(path_parameters["job_id"])) % len(JOBS)]}
    return path_parameters


@schema.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Nobody waits long here."""
    waits = context.operation is not None and context.operation.path.endswith("/wait")  # 50 s, unless it is told
    timeout = (query or {}).get("timeout", math.inf if waits else None)
    if isinstance(timeout, int | float) and timeout > LONGEST_WAIT_SECONDS:
        return {**(query or {}), "timeout": LONGEST_WAIT_SECONDS}
    return query


@pytest.fixture(scope="module", params=["sqlite", "postgres"] if EXAMPLES else ["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of each kind where there is time for both; what depends on it has tests of its own."""
    if request.param == "sqlite":
        yield copy_sqlite(request.getfixturevalue("sqlite_template_file"), tmp_path_factory.mktemp("database"))
        return
    server, template = (request.getfixturevalue(f"postgres_{name}") for name in ("server", "template_name"))
    with copied_postgres(server, template) as copy:
        yield copy


@pytest.fixture(scope="module")
def door(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The app with a job that ended, one that runs and one that waits."""
    home = tmp_path_factory.mktemp("fuzz")
    db = Database(url)
    JOBS.clear()
    for end in (True, False):
        held = claimed(db, submitted(db, LOCAL, labels={"team": "a"}))
        record_steps(db, held, 1, 2)
        if end:
            lifecycle.succeed(db, held.lease)
        JOBS.append(held.lease.job_id)
    JOBS.append(submitted(db, LOCAL))
    with app_on(db, api_settings(home, url, failed_keys_per_second=0)) as running:
        yield running
    db.dispose()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES or 12,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_names(case: Case, door: App):
    request = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1:8080")).prepare()
    answer = door.request(request.method or "", request.url or "", headers=request.headers, content=request.body)
    case.validate_response(answer, checks=CHECKS)
