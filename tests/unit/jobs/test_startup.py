"""Settings that no process can start with are refused in one line that names the variable and holds no value."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from api import __main__ as api
from jobs import admin
from worker import __main__ as worker
from worker import relay


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root, told = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**told)


WRONG = [
    ({"PPO_MAX_QUEUED_JOBS": "s3cr3t"}, "PPO_MAX_QUEUED_JOBS: must be a whole number"),
    ({"PPO_DATABASE_URL": "mysql://ann:s3cr3t@db/x"}, "sqlite:///FILE or postgresql://"),
    ({"PPO_DATABASE_URL": "s3cr3t"}, "sqlite:///FILE or postgresql://"),
    ({"PPO_HOME": "/proc/s3cr3t"}, "cannot hold the database"),
]
WRONG_FOR_WORKERS = [
    ({"PPO_BROKER_URL": "amqp://ann:s3cr3t@broker"}, "PPO_BROKER_URL: must begin with memory://"),
    ({"PPO_FENCE_SECONDS": "99"}, "heartbeat_seconds < fence_seconds < lease_seconds"),
]


@pytest.mark.parametrize(
    ("program", "refused"),
    [(api.main, 2), (worker.main, 2), (relay.main, 2), (lambda: admin.main(["migrate"]), 1)],
    ids=["api", "worker", "relay", "admin"],
)
@pytest.mark.parametrize(("variables", "reason"), WRONG)
def test_every_program_says_which_variable(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[], int],
    refused: int,
    variables: dict[str, str],
    reason: str,
) -> None:
    said = started(monkeypatch, capsys, program, variables, refused)
    assert reason in said
    assert "s3cr3t" not in said.replace("/proc/s3cr3t", "")


@pytest.mark.parametrize("program", [worker.main, relay.main], ids=["worker", "relay"])
@pytest.mark.parametrize(("variables", "reason"), WRONG_FOR_WORKERS)
def test_workers_and_relays_have_settings_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[], int],
    variables: dict[str, str],
    reason: str,
) -> None:
    said = started(monkeypatch, capsys, program, variables, 2)
    assert reason in said
    assert "s3cr3t" not in said


def started(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[], int],
    variables: dict[str, str],
    refused: int,
) -> str:
    """The one line that the program leaves with."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert program() == refused
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    return said
