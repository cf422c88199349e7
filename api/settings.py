"""Settings of the front door, from the environment: PPO_HTTP_PORT, PPO_GRPC_PORT and so on."""

from __future__ import annotations

from pydantic import Field

from api.rate import Rate
from jobs.settings import DomainSettings
from ppo_engine.config.data import MAX_FILE_BYTES


class ApiSettings(DomainSettings):
    """Where the two doors listen and what they take."""

    http_host: str = "127.0.0.1"
    """Address for REST. Any but a loopback address needs an API key to exist."""
    http_port: int = Field(8080, ge=0, le=65535)
    """Port for REST; 0 takes a free one and logs it."""
    grpc_host: str = "127.0.0.1"
    """Address for gRPC, with the same rule."""
    grpc_port: int = Field(50051, ge=0, le=65535)
    """Port for gRPC; 0 takes a free one and logs it."""
    max_body_bytes: int = Field(1 << 20, ge=1024, le=64 << 20)
    """Largest request, bytes."""
    body_seconds: float = Field(30.0, gt=0)
    """Longest time for a request's body to arrive; of an upload, for its next part."""
    max_dataset_bytes: int = Field(MAX_FILE_BYTES, ge=1024, le=MAX_FILE_BYTES)
    """Largest uploaded dataset, bytes."""
    rate_limit_per_second: float = Field(100.0, ge=0)
    """Requests of one owner a second that each process takes on average; 0: no limit. Without a key there is none."""
    rate_limit_burst: int = Field(300, ge=1)
    """Requests of one owner that it takes at once."""
    shutdown_seconds: float = Field(10.0, ge=0)
    """Time for requests in flight after SIGTERM."""
    api_threads: int = Field(20, ge=1, le=50)
    """Domain calls at the same time; the database pool holds 50 connections."""

    @property
    def rate(self) -> Rate | None:
        """The limit of one owner's requests, if there is one."""
        return Rate(self.rate_limit_per_second, self.rate_limit_burst) if self.rate_limit_per_second else None
