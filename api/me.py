"""Who the service takes a caller for: one answer for both doors."""

from __future__ import annotations

from api.context import Context
from jobs import quotas
from jobs.access_views import MeView, RateLimitView
from jobs.principal import Principal, Scope


def me(context: Context, caller: Principal) -> MeView:
    """The owner, what the key allows, and how much of the owner's quota is used."""
    rate = context.settings.rate if caller.key_id is not None else None
    return MeView(
        owner=caller.owner_id,
        scopes=[scope.value for scope in Scope if scope in caller.scopes],
        key_id=caller.key_id,
        expire_time=caller.expire_time,
        quota=quotas.quota(context.db, caller.owner_id, context.settings.limits),
        rate_limit=None if rate is None else RateLimitView(requests_per_second=rate.per_second, burst=rate.burst),
    )
