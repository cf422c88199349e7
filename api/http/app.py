"""Puts the HTTP door together."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry

from api.context import Context
from api.http import (
    access_routes,
    catalogue_routes,
    checkpoint_routes,
    dataset_routes,
    docs_routes,
    errand_routes,
    errors,
    job_routes,
    operations_routes,
    plan_routes,
    progress_routes,
    verb_routes,
    webhook_routes,
)
from api.http.edge import Edge
from api.live_jobs import LiveJobs
from api.meters import ServiceState
from jobs import service
from jobs.access_requests import KeyRequest, QuotaRequest
from jobs.dispatch import backlog
from jobs.forking import ForkRequest
from jobs.spec import JobSpec
from jobs.updating import JobPatch
from jobs.webhook_spec import WebhookChanges, WebhookSpec
from ppo_engine.errands import GenerationRequest, PreviewRequest
from ppo_engine.verification import VerificationRequest

ROUTERS = (
    plan_routes.router,
    job_routes.router,
    verb_routes.router,
    progress_routes.router,
    checkpoint_routes.router,
    dataset_routes.router,
    webhook_routes.router,
    catalogue_routes.router,
    errand_routes.router,
    access_routes.router,
    docs_routes.router,
    operations_routes.router,
)
_NAMED = (
    JobSpec,
    JobPatch,
    ForkRequest,
    PreviewRequest,
    GenerationRequest,
    VerificationRequest,
    WebhookSpec,
    WebhookChanges,
    KeyRequest,
    QuotaRequest,
    errors.ProblemDetails,
)
"""Bodies that routes read themselves, for the document."""
_REF = "#/components/schemas/{model}"


def create_app(context: Context) -> FastAPI:
    """The HTTP door over one context."""
    app = FastAPI(
        title="ppo-service",
        version="1",
        description="PPO training of language models as a service.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # Short and stable: clients are generated from them, and docs/twins.py is keyed by them.
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.context = context
    app.state.live_jobs = CollectorRegistry()
    app.state.live_jobs.register(LiveJobs(partial(service.live_metrics, context.db)))
    context.meters.registry.register(
        ServiceState(
            partial(service.count_by_state, context.db),
            partial(service.queue_ages, context.db),
            partial(service.workers, context.db),
            partial(backlog, context.db),
        )
    )
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    app.add_middleware(Edge, meters=context.meters)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with the schemas it cannot find by itself: the spec, the problems, the key."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for model in _NAMED:
            schema = model.model_json_schema(ref_template=_REF)
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
