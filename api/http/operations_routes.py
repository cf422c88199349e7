"""For probes and Prometheus. Open without a key: they hold counts, job ids and job names, no specs and no texts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from api.http.deps import Ctx
from api.http.errors import responses
from api.schema import HOW_TO_MIGRATE, is_current
from jobs import service
from jobs.errors import Unavailable

router = APIRouter(tags=["operations"])


@router.get("/livez", responses=responses())
async def livez() -> dict[str, str]:
    """Whether the process serves at all; looks at nothing else."""
    return {"status": "alive"}


@router.get("/readyz", responses=responses())
def readyz(context: Ctx) -> dict[str, str]:
    """Whether requests can be served: the database answers, its tables are current, and no shutdown has begun."""
    if context.stopping.is_set():
        raise Unavailable("the server is shutting down")
    context.db.ping()
    if not is_current(context.db):
        raise Unavailable(HOW_TO_MIGRATE)
    return {"status": "ready"}


@router.get("/metrics", response_class=Response, responses=responses())
def service_metrics(request: Request, context: Ctx) -> Response:
    """This process's own metrics, and the service's jobs by state and workers."""
    return _exposition(request, context.meters.registry)


@router.get("/metrics/jobs", response_class=Response, responses=responses())
def job_metrics(request: Request) -> Response:
    """Training statistics of the jobs that run now. The same from every API process: scrape one."""
    registry: CollectorRegistry = request.app.state.live_jobs
    return _exposition(request, registry)


@router.get("/sd/workers", responses=responses())
def worker_targets(context: Ctx) -> list[dict[str, Any]]:
    """Workers alive, as Prometheus' HTTP service discovery reads them."""
    targets = []
    for worker in service.workers(context.db):
        url = urlsplit(worker.metrics_url or "")
        if url.netloc:
            labels = {"__scheme__": url.scheme, "__metrics_path__": url.path or "/metrics", "worker": worker.id}
            targets.append({"targets": [url.netloc], "labels": labels})
    return targets


def _exposition(request: Request, registry: CollectorRegistry) -> Response:
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"Content-Type": content_type, "Cache-Control": "no-store"})
