"""Where a delivery connects to: an address that was checked a moment ago, whatever the name means by then."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.dispatch import DueMessage
from ppo_engine.egress import Egress, RewardHost
from tests.support.scripted_http import Reply, serve
from worker.post import deliver

ELSEWHERE = "203.0.113.1"


@pytest.fixture
def meanings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `hooks.example` means at each of the next lookups; beyond them nothing."""
    left: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return real(left.pop(0) if name == "hooks.example" else host, port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return left


def message(port: str) -> DueMessage:
    secret = "whsec_" + "a" * 43 + "="
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return DueMessage("msg_1", "wh_1", f"http://hooks.example:{port}/", (secret,), "job.succeeded", moment, {}, 1)


def test_a_name_that_later_means_another_machine_is_not_called(meanings: list[str]) -> None:
    with serve([Reply(200, b"thanks")]) as receiver:
        due = message(receiver.url.rsplit(":", 1)[1].strip("/"))
        meanings += ["127.0.0.1"]
        result = asyncio.run(deliver(due, Egress(), 30))
        assert (result.status, receiver.asked) == (None, [])
        assert "127.0.0.1, which is not a public address" in (result.error or "")


def test_the_address_that_was_checked_is_connected_to_and_the_name_not_looked_up_again(meanings: list[str]) -> None:
    with serve([Reply(200, b"thanks")]) as receiver:
        due = message(receiver.url.rsplit(":", 1)[1].strip("/"))
        meanings += ["127.0.0.1", ELSEWHERE]
        result = asyncio.run(deliver(due, Egress([RewardHost("hooks.example")]), 30))
        assert (result.status, result.error, len(receiver.asked)) == (200, None, 1)
        assert receiver.asked[0].headers["Host"].startswith("hooks.example:")
        assert meanings == [ELSEWHERE]
