"""Which hosts a spec may have the service call, as far as a submit can tell: addresses, not names.

Names are looked up, and their addresses checked, whenever something is sent; a name may mean another machine by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from jobs.errors import Problem
from jobs.spec import JobSpec
from ppo_engine.config import RewardComponent
from ppo_engine.egress import Egress, literal_addresses

CODE = "host_not_allowed"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the operator allows beside public addresses."""

    webhooks: Egress
    rewards: Egress


def refused_host(url: str, egress: Egress) -> str | None:
    """The host of a URL that no lookup can make public; None where it is allowed, or a name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return host if egress.refused(host, port, literal_addresses(host)) is not None else None


def webhook_problem(url: str, egress: Egress, pointer: str = "/url") -> Problem | None:
    """Why messages may not be posted to a URL."""
    return _problem(url, egress, pointer, "PPO_WEBHOOK_HOSTS")


def reward_problems(rewards: Sequence[RewardComponent], reach: Reach) -> Iterator[Problem]:
    """Reward servers that may not be called, at `/rewards/…`."""
    for index, component in enumerate(rewards):
        if component.http is not None:
            pointer = f"/rewards/{index}/http/url"
            found = _problem(component.http.url, reach.rewards, pointer, "PPO_REWARD_HOSTS")
            yield from [] if found is None else [found]


def host_problems(spec: JobSpec, reach: Reach) -> Iterator[Problem]:
    """Every host of a spec that may not be called."""
    yield from reward_problems(spec.rewards, reach)
    for index, item in enumerate(spec.notify):
        if item.url is not None:
            found = webhook_problem(item.url, reach.webhooks, f"/notify/{index}/url")
            yield from [] if found is None else [found]


def _problem(url: str, egress: Egress, pointer: str, setting: str) -> Problem | None:
    host = refused_host(url, egress)
    if host is None:
        return None
    detail = f"is not a public address; the operator can allow it with {setting}"
    return Problem(pointer=pointer, code=CODE, detail=detail, given=host)
