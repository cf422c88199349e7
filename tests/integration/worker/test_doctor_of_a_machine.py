"""`python -m worker.doctor`: the broker, and settings that work against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from worker import doctor
from worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"heartbeat_seconds": 20}, "PPO_HEARTBEAT_SECONDS"),
        ({"reap_seconds": 90}, "PPO_REAP_SECONDS"),
        ({"presence_seconds": 45}, "PPO_PRESENCE_SECONDS"),
        ({"grace_seconds": 90}, "PPO_GRACE_SECONDS"),
        ({"engine_threads": 1000}, "PPO_ENGINE_THREADS"),
        ({"engine_command": ["/nowhere/engine"]}, "PPO_ENGINE_COMMAND"),
        ({"reward_token_file": Path("/nowhere/token"), "reward_hosts": "h"}, "PPO_REWARD_TOKEN_FILE"),
        ({"reward_token_file": Path(__file__)}, "PPO_REWARD_HOSTS"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, changed: dict[str, Any], word: str) -> None:
    [found] = doctor.look_at_settings(WorkerSettings(home=tmp_path, **changed))
    assert found.level != "ok"
    assert word in found.advice


def test_the_defaults_do_not(tmp_path: Path) -> None:
    assert [found.level for found in doctor.look_at_settings(WorkerSettings(home=tmp_path))] == ["ok"]


def test_settings_no_worker_starts_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PPO_HOME", str(tmp_path))
    monkeypatch.setenv("PPO_SLOTS", "hunter22")
    assert doctor.main(["--json"]) == 1
    out = capsys.readouterr().out
    [found] = json.loads(out)["findings"]
    assert found["text"].startswith("PPO_SLOTS: ")
    assert "hunter22" not in out
    monkeypatch.delenv("PPO_SLOTS")
    monkeypatch.setenv("PPO_DATABASE_URL", "mysql://root:hunter22@host/db")
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "PPO_DATABASE_URL" in out
    assert "hunter22" not in out


def test_a_broker(redis_url: str, tmp_path: Path) -> None:
    settings = WorkerSettings(home=tmp_path, broker_url=redis_url)
    assert doctor.look_at_broker(settings).level == "ok"
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = doctor.look_at_broker(settings)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert found.level == "warning"
    assert "allkeys-lru" in found.text


def test_a_broker_that_is_away(tmp_path: Path) -> None:
    found = doctor.look_at_broker(WorkerSettings(home=tmp_path, broker_url="redis://:hunter22@127.0.0.1:9/0"))
    assert found.level == "failure"
    assert "redis://127.0.0.1:9" in found.text
    assert "hunter22" not in found.text


def test_postgres_wants_a_broker(tmp_path: Path) -> None:
    assert doctor.look_at_broker(WorkerSettings(home=tmp_path)).level == "ok"
    cluster = WorkerSettings(home=tmp_path, database_url="postgresql://h/db")
    assert doctor.look_at_broker(cluster).level == "warning"
