"""What leaves the domain about keys, quotas and the audit log: values that REST, gRPC and the client share."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from jobs.views import View


class KeyView(View):
    """A key, without the key."""

    id: str
    owner: str
    name: str
    scopes: list[str]
    create_time: datetime
    expire_time: datetime | None
    last_use_time: datetime | None = Field(description="To the minute.")
    revoke_time: datetime | None


class NewKeyView(KeyView):
    """A key that was just made: the only answer that ever shows it."""

    key: str


class Usage(View):
    """How many there are, and how many there may be; None without a limit."""

    used: int
    limit: int | None = None


class QuotaView(View):
    """What an owner may have at the same time, and has now."""

    owner: str
    running_jobs: Usage
    queued_jobs: Usage
    datasets: Usage
    stored_bytes: Usage = Field(description="Of all datasets together, as they are kept.")
    is_default: bool = Field(description="Whether all limits are the service's own.")


class RateLimitView(View):
    """How often an owner may call each process of the front door."""

    requests_per_second: float
    burst: int


class MeView(View):
    """Who the service takes you for, and what that allows."""

    owner: str
    scopes: list[str]
    key_id: str | None
    expire_time: datetime | None
    quota: QuotaView
    rate_limit: RateLimitView | None = Field(description="None: not limited.")


class AuditView(View):
    """A change that somebody made, or was refused."""

    id: str
    time: datetime
    owner: str = Field(description="Who did it.")
    key_id: str | None
    action: str
    target: str | None
    outcome: str = Field(description="`done`, or the code of the refusal.")
    request_id: str | None
    address: str | None
    detail: dict[str, Any]
