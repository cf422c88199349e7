"""`ppo doctor`: the service from outside, and the machine it runs on."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from ppo_client import cli
from ppo_client.commands.doctor import compare_clocks, look_at_service
from ppo_client.commands.exits import Exit
from tests.support.scripted_http import json_reply, problem, serve

READY = json_reply({"status": "ready"})
ME = json_reply({"owner": "ann"})


def levels(url: str, key: str | None = None) -> list[tuple[str, str]]:
    return [(found.check, found.level.value) for found in look_at_service(url, key)]


def test_a_service_that_is_well() -> None:
    with serve([READY, ME]) as server:
        findings = list(look_at_service(server.url, "ppo_secret"))
    assert [found.level for found in findings if found.check != "clock"] == ["ok", "ok"]
    assert findings[-1].text == "you are ann"
    assert "ppo_secret" not in repr(findings)


def test_one_that_is_not_ready_and_wants_a_key() -> None:
    refused = problem(503, detail="run `python -m jobs.admin migrate`")
    with serve([refused, problem(401, detail="an API key is needed")]) as server:
        found = {finding.check: finding for finding in look_at_service(server.url, None)}
    assert found["service"].level == "failure"
    assert "jobs.admin migrate" in found["service"].text
    assert found["access"].level == "failure"
    assert "PPO_KEY" in found["access"].advice


@pytest.mark.parametrize(("hours", "level"), [(0, ["ok"]), (1, ["warning"]), (-1, ["warning"])])
def test_the_time_of_the_service(hours: int, level: list[str]) -> None:
    then = format_datetime(datetime.now(UTC) - timedelta(hours=hours), usegmt=True)
    assert [found.level.value for found in compare_clocks(then)] == level


def test_a_time_that_cannot_be_read() -> None:
    assert list(compare_clocks("")) == []
    assert list(compare_clocks("Tue, 01 Dec 2026 00:00:00, and again")) == []


def test_nobody_there() -> None:
    assert levels("http://127.0.0.1:9") == [("service", "failure")]


def test_the_machine_is_looked_at_too(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.link(sqlite_url.removeprefix("sqlite:///"), tmp_path / "ppo.db")
    monkeypatch.delenv("PPO_KEY", raising=False)
    with serve([READY, ME]) as server:
        monkeypatch.setattr(sys, "argv", ["ppo", "doctor", "--local", str(tmp_path), "--url", server.url, "--json"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert caught.value.code == Exit.OBSTACLE, "no worker lives"
    told = json.loads(capsys.readouterr().out)
    failed = {found["check"] for found in told["findings"] if found["level"] == "failure"} - {"disk"}
    assert failed == {"workers"}
    assert {"service", "migrations", "broker"} <= {found["check"] for found in told["findings"]}
