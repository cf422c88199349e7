"""Builds the gRPC door: limits, keepalive, health, reflection, the gate."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from api.access import Door
from api.context import Context
from api.rpc.access import AccessServicer
from api.rpc.catalogue import CatalogueServicer
from api.rpc.datasets import DatasetServicer
from api.rpc.gate import Gate
from api.rpc.servicer import Servicer
from api.rpc.v1 import (
    access_service_pb2,
    catalogue_service_pb2,
    dataset_service_pb2,
    job_service_pb2,
    webhook_service_pb2,
)
from api.rpc.v1.access_service_pb2_grpc import add_AccessServiceServicer_to_server
from api.rpc.v1.catalogue_service_pb2_grpc import add_CatalogueServiceServicer_to_server
from api.rpc.v1.dataset_service_pb2_grpc import add_DatasetServiceServicer_to_server
from api.rpc.v1.job_service_pb2_grpc import add_JobServiceServicer_to_server
from api.rpc.v1.webhook_service_pb2_grpc import add_WebhookServiceServicer_to_server
from api.rpc.webhooks import WebhookServicer

FILES = (
    job_service_pb2.DESCRIPTOR,
    catalogue_service_pb2.DESCRIPTOR,
    dataset_service_pb2.DESCRIPTOR,
    webhook_service_pb2.DESCRIPTOR,
    access_service_pb2.DESCRIPTOR,
)
SERVICES = tuple(service.full_name for file in FILES for service in file.services_by_name.values())
"""Every service of this door but health and reflection."""


class GrpcDoor:
    """A grpc.aio server with every service, health and reflection; belongs to the running event loop."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        door = Door(context.db, settings, settings.grpc_host, context.known_callers, context.buckets, context.strangers)
        self._server = grpc.aio.server(
            interceptors=[Gate(door, context.meters)],
            options=_options(settings.max_body_bytes, settings.max_connections),
            maximum_concurrent_rpcs=1000,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_JobServiceServicer_to_server(Servicer(context), self._server)
        add_CatalogueServiceServicer_to_server(CatalogueServicer(context), self._server)
        add_DatasetServiceServicer_to_server(DatasetServicer(context), self._server)
        add_WebhookServiceServicer_to_server(WebhookServicer(context), self._server)
        add_AccessServiceServicer_to_server(AccessServicer(context), self._server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        self.port = self._server.add_insecure_port(f"{_bracketed(settings.grpc_host)}:{settings.grpc_port}")

    async def start(self) -> None:
        """Listen, and tell probes so."""
        await self._server.start()
        for name in ("", *SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """Tell probes, take no new calls, give those in flight `grace_seconds`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)


def _options(max_request_bytes: int, max_connections: int) -> list[tuple[str, int]]:
    return [
        # Without 0 a second process binds the same port in silence and takes half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_send_message_length", 64 << 20),
        ("grpc.max_concurrent_streams", 100),
        ("grpc.max_metadata_size", 16 << 10),
        # A connection without calls is closed after a minute, one that never speaks HTTP/2 soon. An old one takes
        # no new calls, so that clients spread over new processes; what runs on it goes on.
        ("grpc.max_connection_idle_ms", 60_000),
        ("grpc.max_connection_age_ms", 3_600_000),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
        ("grpc.http2.max_ping_strikes", 2),
    ]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
