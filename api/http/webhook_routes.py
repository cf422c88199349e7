"""Webhooks: endpoints that are told what happens to jobs, and the log of what was sent to them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from api import errors as door
from api.http.body import json_object
from api.http.deps import Caller, Ctx
from api.http.errors import responses
from api.http.queries import NO_QUERY, DeliveriesQuery, PageQuery
from jobs import errors as domain
from jobs import webhooks
from jobs.views import Page
from jobs.webhook_spec import WebhookChanges, WebhookSpec
from jobs.webhook_views import (
    DeliveryView,
    NewWebhookView,
    WebhookMessageView,
    WebhookSecretView,
    WebhookView,
)

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

_REFUSALS = (domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.WebhookNotFound)
_BODY = (
    door.MalformedBody,
    door.BodyTimeout,
    door.BodyTooLarge,
    door.UnsupportedMediaType,
    domain.AlreadyExists,
    domain.InvalidRequest,
)
Document = Annotated[dict[str, Any], Depends(json_object)]


def _takes(model: type[WebhookSpec] | type[WebhookChanges]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(
    "",
    status_code=201,
    dependencies=[NO_QUERY],
    openapi_extra=_takes(WebhookSpec),
    responses=responses(*_REFUSALS[:-1], *_BODY, domain.LimitReached),
)
def create_webhook(context: Ctx, caller: Caller, document: Document, response: Response) -> NewWebhookView:
    """Make an endpoint. The answer has its signing secret, which is never shown again.

    Messages are `{type, timestamp, data}`, signed as [Standard Webhooks](https://www.standardwebhooks.com) are. Any 2xx
    within 15 s is a receipt. Everything else is tried again with growing pauses for a day; redirects are not followed,
    and 410 disables the endpoint. A message may come twice, or late: its `webhook-id` and `data.event.seq` tell.
    """
    made = webhooks.create(
        context.db,
        caller,
        document,
        pepper=context.settings.key_pepper,
        egress=context.settings.webhook_egress,
    )
    response.headers["Location"] = f"/v1/webhooks/{made.id}"
    response.headers["Cache-Control"] = "no-store"
    return made


@router.get("", responses=responses(*_REFUSALS[:-1]))
def list_webhooks(context: Ctx, caller: Caller, query: Annotated[PageQuery, Query()]) -> Page[WebhookView]:
    """List your endpoints, newest first, a page at a time."""
    return webhooks.list_webhooks(context.db, caller, page_size=query.page_size, page_token=query.page_token)


@router.get("/{webhook_id}", dependencies=[NO_QUERY], responses=responses(*_REFUSALS))
def get_webhook(context: Ctx, caller: Caller, webhook_id: str) -> WebhookView:
    """Get an endpoint, without its secret."""
    return webhooks.get(context.db, caller, webhook_id)


@router.patch(
    "/{webhook_id}",
    dependencies=[NO_QUERY],
    openapi_extra=_takes(WebhookChanges),
    responses=responses(*_REFUSALS, *_BODY),
)
def update_webhook(context: Ctx, caller: Caller, webhook_id: str, document: Document) -> WebhookView:
    """Change what the body names. Disabling drops what still waits; enabling forgives past failures."""
    return webhooks.update(context.db, caller, webhook_id, document, egress=context.settings.webhook_egress)


@router.delete("/{webhook_id}", status_code=204, dependencies=[NO_QUERY], responses=responses(*_REFUSALS))
def delete_webhook(context: Ctx, caller: Caller, webhook_id: str) -> None:
    """Remove an endpoint, what still waits for it, and its log."""
    webhooks.delete(context.db, caller, webhook_id)


@router.post("/{webhook_id}/rotate-secret", dependencies=[NO_QUERY], responses=responses(*_REFUSALS))
def rotate_secret(context: Ctx, caller: Caller, webhook_id: str, response: Response) -> WebhookSecretView:
    """Make a new secret. For a day messages carry the signatures of both, so that receivers can change over."""
    response.headers["Cache-Control"] = "no-store"
    return webhooks.rotate_secret(context.db, caller, webhook_id, pepper=context.settings.key_pepper)


@router.post("/{webhook_id}/test", status_code=202, dependencies=[NO_QUERY], responses=responses(*_REFUSALS))
def send_test(context: Ctx, caller: Caller, webhook_id: str) -> WebhookMessageView:
    """Send a message of type `webhook.test`; the deliveries with its id say how it went."""
    return webhooks.send_test(context.db, caller, webhook_id)


@router.get("/{webhook_id}/deliveries", responses=responses(*_REFUSALS))
def deliveries(
    context: Ctx, caller: Caller, webhook_id: str, query: Annotated[DeliveriesQuery, Query()]
) -> Page[DeliveryView]:
    """List delivery attempts, newest first, a page at a time. They are kept for 30 days."""
    return webhooks.deliveries(
        context.db,
        caller,
        webhook_id,
        message_id=query.message_id,
        page_size=query.page_size,
        page_token=query.page_token,
    )


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    dependencies=[NO_QUERY],
    responses=responses(*_REFUSALS),
)
def redeliver(context: Ctx, caller: Caller, webhook_id: str, delivery_id: str) -> WebhookMessageView:
    """Send the message of a delivery again, under the same `webhook-id`."""
    return webhooks.redeliver(context.db, caller, webhook_id, delivery_id)
