"""WebhookService: convert, ask the domain, convert back. Errors pass through to the gate."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from api.context import Context
from api.rpc.convert import moment
from api.rpc.gate import CALLER
from api.rpc.v1 import webhook_service_pb2 as pb
from api.rpc.v1.webhook_service_pb2_grpc import WebhookServiceServicer
from api.threads import in_thread
from jobs import webhooks
from jobs.errors import InvalidArgument
from jobs.webhook_views import DeliveryView, WebhookView

_FIELDS = ("url", "description", "all_jobs", "enabled")


class WebhookServicer(WebhookServiceServicer):
    """WebhookService over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._db = context.db

    async def CreateWebhook(self, request: pb.CreateWebhookRequest, context: Any) -> pb.CreateWebhookResponse:
        """Make an endpoint."""
        settings = self._context.settings
        made = await in_thread(
            webhooks.create,
            self._db,
            CALLER.get(),
            {"url": request.url, **_document(request)},
            pepper=settings.key_pepper,
            egress=settings.webhook_egress,
        )
        return pb.CreateWebhookResponse(webhook=_webhook(made), secret=made.secret)

    async def GetWebhook(self, request: pb.GetWebhookRequest, context: Any) -> pb.GetWebhookResponse:
        """Look an endpoint up."""
        found = await in_thread(webhooks.get, self._db, CALLER.get(), request.webhook_id)
        return pb.GetWebhookResponse(webhook=_webhook(found))

    async def ListWebhooks(self, request: pb.ListWebhooksRequest, context: Any) -> pb.ListWebhooksResponse:
        """List one page of endpoints."""
        page = await in_thread(webhooks.list_webhooks, self._db, CALLER.get(), **_page(request))
        return pb.ListWebhooksResponse(webhooks=map(_webhook, page.items), next_page_token=page.next_page_token or "")

    async def UpdateWebhook(self, request: pb.UpdateWebhookRequest, context: Any) -> pb.UpdateWebhookResponse:
        """Change an endpoint."""
        egress = self._context.settings.webhook_egress
        document = _document(request)
        found = await in_thread(webhooks.update, self._db, CALLER.get(), request.webhook_id, document, egress=egress)
        return pb.UpdateWebhookResponse(webhook=_webhook(found))

    async def DeleteWebhook(self, request: pb.DeleteWebhookRequest, context: Any) -> pb.DeleteWebhookResponse:
        """Remove an endpoint."""
        await in_thread(webhooks.delete, self._db, CALLER.get(), request.webhook_id)
        return pb.DeleteWebhookResponse()

    async def RotateWebhookSecret(
        self, request: pb.RotateWebhookSecretRequest, context: Any
    ) -> pb.RotateWebhookSecretResponse:
        """Make a new secret."""
        pepper = self._context.settings.key_pepper
        made = await in_thread(webhooks.rotate_secret, self._db, CALLER.get(), request.webhook_id, pepper=pepper)
        return pb.RotateWebhookSecretResponse(secret=made.secret, previous_until=moment(made.previous_until))

    async def TestWebhook(self, request: pb.TestWebhookRequest, context: Any) -> pb.TestWebhookResponse:
        """Send a test message."""
        sent = await in_thread(webhooks.send_test, self._db, CALLER.get(), request.webhook_id)
        return pb.TestWebhookResponse(message_id=sent.message_id)

    async def ListWebhookDeliveries(
        self, request: pb.ListWebhookDeliveriesRequest, context: Any
    ) -> pb.ListWebhookDeliveriesResponse:
        """List one page of delivery attempts."""
        page = await in_thread(
            webhooks.deliveries,
            self._db,
            CALLER.get(),
            request.webhook_id,
            message_id=request.message_id or None,
            **_page(request),
        )
        return pb.ListWebhookDeliveriesResponse(
            deliveries=map(_delivery, page.items), next_page_token=page.next_page_token or ""
        )

    async def RedeliverWebhook(self, request: pb.RedeliverWebhookRequest, context: Any) -> pb.RedeliverWebhookResponse:
        """Send a message again."""
        sent = await in_thread(webhooks.redeliver, self._db, CALLER.get(), request.webhook_id, request.delivery_id)
        return pb.RedeliverWebhookResponse(message_id=sent.message_id)


def _document(request: pb.CreateWebhookRequest | pb.UpdateWebhookRequest) -> dict[str, Any]:
    """The fields that are present, as the JSON they stand for."""
    document: dict[str, Any] = {field.name: value for field, value in request.ListFields() if field.name in _FIELDS}
    if request.HasField("event_types"):
        document["event_types"] = list(request.event_types.values)
    return document


def _page(request: pb.ListWebhooksRequest | pb.ListWebhookDeliveriesRequest) -> dict[str, Any]:
    """0 is how proto3 says absent."""
    if request.page_size < 0:
        raise InvalidArgument("page_size must not be negative")
    return {"page_size": request.page_size or 50, "page_token": request.page_token or None}


def _webhook(view: WebhookView) -> pb.Webhook:
    return pb.Webhook(**_fields(view, pb.Webhook))


def _delivery(view: DeliveryView) -> pb.WebhookDelivery:
    return pb.WebhookDelivery(**_fields(view, pb.WebhookDelivery))


def _fields(view: WebhookView | DeliveryView, message: type[Message]) -> dict[str, Any]:
    """Values by name; a view may hold more than the message, as a new endpoint does its secret."""
    values = {field.name: getattr(view, field.name) for field in message.DESCRIPTOR.fields}
    return {name: moment(value) if hasattr(value, "tzinfo") else value for name, value in values.items()}
