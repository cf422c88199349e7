"""Settings of the front door, from the environment: PPO_HTTP_PORT, PPO_GRPC_PORT and so on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from api.forwarded import Network, networks
from api.rate import Rate, failures
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
    upload_bytes_per_second: int = Field(4096, ge=1)
    """Slowest upload, on average beyond the first body_seconds; one that is slower is refused."""
    max_connections: int = Field(1000, ge=8)
    """Connections of each door at the same time. Beyond it REST closes the one that has been idle for longest, and gRPC
    takes no new ones until an idle minute has ended some."""
    max_dataset_bytes: int = Field(MAX_FILE_BYTES, ge=1024, le=MAX_FILE_BYTES)
    """Largest uploaded dataset, bytes."""
    rate_limit_per_second: float = Field(100.0, ge=0)
    """Requests of one owner a second that each process takes on average; 0: no limit. Without a key there is none."""
    rate_limit_burst: int = Field(300, ge=1)
    """Requests of one owner that it takes at once."""
    failed_keys_per_second: float = Field(1.0, ge=0)
    """Requests of one address a second without a usable key that each process answers on average; 0: no limit."""
    failed_keys_burst: int = Field(50, ge=1)
    """Requests of one address without a usable key that it answers at once."""
    trusted_proxies: Annotated[list[str], NoDecode] = Field(default_factory=list)
    """Addresses or networks of the proxies whose `X-Forwarded-For` is believed, comma separated. Default: none."""
    shutdown_seconds: float = Field(10.0, ge=0)
    """Time for requests in flight after SIGTERM."""
    api_threads: int = Field(20, ge=1, le=50)
    """Domain calls at the same time; the database pool holds 50 connections."""

    @property
    def rate(self) -> Rate | None:
        """The limit of one owner's requests, if there is one."""
        return Rate(self.rate_limit_per_second, self.rate_limit_burst) if self.rate_limit_per_second else None

    @property
    def failed_keys(self) -> Rate | None:
        """The limit of one address's requests without a usable key, if there is one."""
        return failures(self.failed_keys_per_second, self.failed_keys_burst)

    @property
    def proxies(self) -> list[Network]:
        """The proxies that are believed."""
        return networks(self.trusted_proxies)

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _split_proxies(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, proxies: list[str]) -> list[str]:
        networks(proxies)
        return proxies
