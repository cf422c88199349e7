"""Webhooks through the client, the command line and gRPC, with a real service, a real sender and a real receiver."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from api.rpc.v1 import webhook_service_pb2 as pb
from api.rpc.v1.webhook_service_pb2_grpc import WebhookServiceStub
from jobs.db import Database
from jobs.webhook_views import DeliveryView, WebhookView
from ppo_client import cli
from ppo_client.client import PPOClient
from ppo_client.errors import NotFound
from ppo_client.webhooks import SignatureMismatch, verify
from tests.support.grpc_api import refusal
from tests.support.http_api import Served, served_on, settings
from tests.support.receivers import courier_settings
from tests.support.scripted_http import Reply, ScriptedServer, serve
from worker.courier import Courier


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    with serve([Reply(200, b"ok")] * 20) as server:
        yield server


@pytest.fixture
def running(sqlite_url: str, home: Path) -> Iterator[Served]:
    """Both doors and a sender, all of which may call this machine."""
    db = Database(sqlite_url)
    given = settings(home, sqlite_url, http_port=0, grpc_port=0, webhook_hosts=["127.0.0.1"])
    courier = Courier(db, courier_settings(home, sqlite_url))
    courier.start()
    with served_on(db, given) as served:
        yield served
    courier.stop()
    db.dispose()


def test_the_client_manages_and_a_receiver_verifies(running: Served, receiver: ScriptedServer):
    with PPOClient(running.http) as client:
        hook = client.webhooks.add(receiver.url, event_types=["*"], description="ops")
        assert [found.id for found in client.webhooks.list()] == [hook.id]
        delivery = client.webhooks.test(hook.id)
        assert delivery is not None
        assert (delivery.status, delivery.answer, delivery.type) == (200, "ok", "webhook.test")
        asked = receiver.asked[0]
        message = verify(asked.body, asked.headers, hook.secret)
        assert (message["type"], message["data"]) == ("webhook.test", {"webhook": {"id": hook.id}})
        assert client.webhooks.redeliver(hook.id, delivery.id) == delivery.message_id
        newer = client.webhooks.rotate_secret(hook.id).secret
        assert newer != hook.secret
        assert not client.webhooks.update(hook.id, enabled=False).enabled
        client.webhooks.remove(hook.id)
        with pytest.raises(NotFound):
            client.webhooks.get(hook.id)


def test_a_receiver_believes_nothing_else(running: Served, receiver: ScriptedServer, monkeypatch: pytest.MonkeyPatch):
    with PPOClient(running.http) as client:
        hook = client.webhooks.add(receiver.url)
        assert client.webhooks.test(hook.id)
    asked = receiver.asked[0]
    assert verify(asked.body, asked.headers, ["whsec_" + "A" * 44, hook.secret])
    stamp = int(asked.headers["webhook-timestamp"])
    forged = [
        (asked.body + b" ", asked.headers, hook.secret),
        (asked.body, asked.headers, "whsec_" + "A" * 43 + "="),
        (asked.body, {**asked.headers, "webhook-id": "msg_other"}, hook.secret),
        (asked.body, {**asked.headers, "webhook-timestamp": str(stamp + 1)}, hook.secret),
        (asked.body, {**asked.headers, "webhook-timestamp": "²"}, hook.secret),
        (asked.body, {}, hook.secret),
    ]
    for body, headers, secret in forged:
        with pytest.raises(SignatureMismatch):
            verify(body, headers, secret)
    for later in (-301, 301):
        monkeypatch.setattr(time, "time", lambda later=later: stamp + later)
        with pytest.raises(SignatureMismatch, match="too old"):
            verify(asked.body, asked.headers, hook.secret)


def test_the_command_line(running: Served, receiver: ScriptedServer, monkeypatch, capsys):
    monkeypatch.setenv("PPO_URL", running.http)
    monkeypatch.setattr("ppo_client.commands.options.console._width", 200)  # COLUMNS is read once, at the import

    def ppo(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ppo", "webhooks", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        assert not caught.value.code, captured.err
        # The service runs in this process, and its log goes where the command prints.
        return "".join(line for line in captured.out.splitlines(keepends=True) if "[info" not in line)

    made = json.loads(ppo("add", receiver.url, "--event", "job.failed", "--named-only", "--json"))
    assert (made["event_types"], made["all_jobs"]) == (["job.failed"], False)
    assert made["secret"] not in ppo("ls")
    assert "200" in ppo("test", made["id"])
    (delivery,) = json.loads(ppo("deliveries", made["id"], "--json"))
    assert delivery["message_id"] in ppo("redeliver", made["id"], delivery["id"])
    assert "whsec_" in ppo("rotate", made["id"])
    assert "off" in ppo("set", made["id"], "--disable")
    assert delivery["id"] in ppo("deliveries", made["id"])
    ppo("rm", made["id"])
    assert ppo("ls") == "no webhooks\n"


def test_grpc_says_the_same(running: Served, receiver: ScriptedServer):
    with grpc.insecure_channel(running.grpc) as channel, PPOClient(running.http) as client:
        stub = WebhookServiceStub(channel)
        request = pb.CreateWebhookRequest(url=receiver.url, all_jobs=False, event_types=pb.EventTypes(values=["*"]))
        made = stub.CreateWebhook(request)
        assert made.secret.startswith("whsec_")
        over_rest = client.webhooks.get(made.webhook.id)
        assert (made.webhook.url, list(made.webhook.event_types)) == (over_rest.url, over_rest.event_types)
        assert made.webhook.create_time.ToDatetime(over_rest.create_time.tzinfo) == over_rest.create_time
        assert not made.webhook.HasField("disable_reason")
        stub.UpdateWebhook(pb.UpdateWebhookRequest(webhook_id=over_rest.id, description="new"))
        found = stub.GetWebhook(pb.GetWebhookRequest(webhook_id=over_rest.id)).webhook
        assert (found.description, list(found.event_types), found.all_jobs) == ("new", ["*"], False)
        assert stub.TestWebhook(pb.TestWebhookRequest(webhook_id=found.id)).message_id
        while not (page := stub.ListWebhookDeliveries(pb.ListWebhookDeliveriesRequest(webhook_id=found.id))).deliveries:
            time.sleep(0.05)
        (delivery,) = page.deliveries
        assert (delivery.status, delivery.outcome, delivery.HasField("error")) == (200, "delivered", False)
        again = pb.RedeliverWebhookRequest(webhook_id=found.id, delivery_id=delivery.id)
        assert stub.RedeliverWebhook(again).message_id == delivery.message_id
        rotated = stub.RotateWebhookSecret(pb.RotateWebhookSecretRequest(webhook_id=found.id))
        assert rotated.secret != made.secret
        assert [hook.id for hook in stub.ListWebhooks(pb.ListWebhooksRequest()).webhooks] == [found.id]
        wrong = pb.CreateWebhookRequest(url="http://10.0.0.1/")
        refused = refusal(lambda: stub.CreateWebhook(wrong))
        assert (refused.code, refused.violations) == (grpc.StatusCode.INVALID_ARGUMENT, {"url": "host_not_allowed"})
        assert refusal(lambda: stub.CreateWebhook(request)).reason == "already_exists"
        stub.DeleteWebhook(pb.DeleteWebhookRequest(webhook_id=found.id))
        gone = refusal(lambda: stub.GetWebhook(pb.GetWebhookRequest(webhook_id=found.id)))
        assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, "webhook_not_found")


@pytest.mark.parametrize(("view", "message"), [(WebhookView, pb.Webhook), (DeliveryView, pb.WebhookDelivery)])
def test_views_and_messages_have_the_same_fields(view, message):
    assert set(view.model_fields) == {field.name for field in message.DESCRIPTOR.fields}
