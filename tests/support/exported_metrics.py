"""What the running service really exports: names and labels, read from its own pages."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import httpx
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from api.context import Context
from api.http.app import create_app
from api.settings import ApiSettings
from jobs import lifecycle, service
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.migrate import migrate
from jobs.spec import parse_spec
from ppo_engine.events import StepDone
from ppo_engine.stats import FAMILIES, SCALARS
from worker.gauges import Gauges

Exported = Mapping[str, set[str]]
"""Labels of every series name; a name without samples has none."""

SPEC = {
    "name": "seen-by-prometheus",
    "model": {"policy": {"hub": "some/model"}},
    "prompts": {"inline": ["Once"]},
    "rewards": [{"name": "long", "rule": {"name": "length", "params": {"target": 5}}}],
    "ppo": {"steps": 3},
}


def parse(page: str) -> Exported:
    """Names and labels of a page in Prometheus' text format."""
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(page):
        found.update({name: set() for name in _series(family.name, family.type) if name not in found})
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return dict(found)


def pages_of_the_front_door(home: Path) -> tuple[str, str]:
    """`/metrics` and `/metrics/jobs` while one job runs, on a database of its own."""
    db = Database(f"sqlite:///{home}/ppo.db")
    migrate(db)
    run_one_job(db)
    context = Context(ApiSettings(home=home, key_pepper=SecretStr("pepper")), db)
    # What the other door counts with; HTTP counts the requests below.
    context.meters.grpc_handled.labels("GetJob", "OK")
    context.meters.grpc_seconds.labels("GetJob")
    context.meters.streams.labels("grpc")
    try:
        return asyncio.run(_get(create_app(context)))
    finally:
        db.dispose()


def run_one_job(db: Database) -> str:
    """A job in the middle of its run that has reported every statistic once; its id."""
    job, _ = service.submit(db, LOCAL, parse_spec(SPEC), roots=[])
    lifecycle.beat_worker(db, "w1", host="h", metrics_url="http://h:9/metrics", slots=2, busy=1, queues=["default"])
    claim = lifecycle.claim(db, worker_id="w1", queues=["default"], lease_seconds=60)
    assert claim is not None
    scalars = dict.fromkeys([*SCALARS, *(family.key("long") for family in FAMILIES)], 0.5)
    lifecycle.record_step(db, claim.lease, StepDone(step=1, scalars=scalars))
    service.submit(db, LOCAL, parse_spec(SPEC), roots=[])  # and one that waits
    return job.id


def page_of_a_worker() -> str:
    """A worker's own `/metrics` after one attempt."""
    gauges = Gauges()
    gauges.attempts.labels("succeeded", "").inc()
    return generate_latest(gauges.registry).decode()


def everything(home: Path) -> dict[str, Exported]:
    """Exported names by the scrape job of deploy/prometheus/prometheus.yml."""
    own, jobs = pages_of_the_front_door(home)
    return {"ppo-api": parse(own), "ppo-jobs": parse(jobs), "ppo-workers": parse(page_of_a_worker())}


async def _get(app: object) -> tuple[str, str]:
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await client.get("/livez")
        pages = [await client.get(path) for path in ("/metrics", "/metrics/jobs")]
    for page in pages:
        page.raise_for_status()
    return pages[0].text, pages[1].text


def _series(family: str, kind: str) -> list[str]:
    endings = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "info": ("_info",)}
    base = re.sub(r"_total$", "", family) if kind == "counter" else family
    return [base + ending for ending in endings.get(kind, ("",))]
