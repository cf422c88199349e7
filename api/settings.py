"""Settings of the front door, from the environment: PPO_HTTP_PORT, PPO_GRPC_PORT and so on."""

from __future__ import annotations

from pydantic import Field

from jobs.settings import DomainSettings


class ApiSettings(DomainSettings):
    """Where the two doors listen and what they take. Port 0 means any free one."""

    http_host: str = "127.0.0.1"
    """Address of the HTTP door. Anything but a loopback address needs an API key to exist."""
    http_port: int = Field(8080, ge=0, le=65535)
    """Port of the HTTP door."""
    grpc_host: str = "127.0.0.1"
    """Address of the gRPC door, with the same rule."""
    grpc_port: int = Field(50051, ge=0, le=65535)
    """Port of the gRPC door."""
    max_body_bytes: int = Field(1 << 20, ge=1024, le=64 << 20)
    """Largest body of a request."""
    body_seconds: float = Field(30.0, gt=0)
    """A body that takes longer is refused."""
    shutdown_seconds: float = Field(10.0, ge=0)
    """Time for requests in flight after SIGTERM."""
    api_threads: int = Field(20, ge=1, le=1000)
    """Domain calls at the same time; no more than the database pool holds."""
