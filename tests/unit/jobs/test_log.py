"""Log lines are JSON, one a line, and hold no secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from jobs.log import configure
from jobs.mask import mask

KEY = "ppo_" + "aB3_-" * 8 + "xyz"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """What was logged to standard error."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_an_object_with_what_was_bound(capsys: pytest.CaptureFixture[str]) -> None:
    configure("api")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger("api.http").info("submitted", job_id="job_1", seconds=0.5)
    [line] = lines(capsys)
    assert (line["event"], line["level"], line["service"], line["logger"]) == ("submitted", "info", "api", "api.http")
    assert (line["job_id"], line["seconds"], line["request_id"]) == ("job_1", 0.5, "r1")
    assert line["timestamp"].endswith("Z")


def test_the_standard_librarys_logs_come_out_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    configure("api")
    logging.getLogger("uvicorn.error").warning("slow: %s", "x")
    [line] = lines(capsys)
    assert (line["event"], line["level"], line["service"]) == ("slow: x", "warning", "api")


def test_secrets_are_masked_wherever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    configure("api")
    log = structlog.get_logger()
    log.info("key", key=KEY, url="postgresql://u:hunter2@h/db", nested={"list": [KEY, ("redis://:hunter2@h", 1)]})
    logging.getLogger("x").info("Authorization: Bearer %s", "hunter2hunter2")
    try:
        raise ValueError(f"bad key {KEY}")
    except ValueError:
        log.exception("failed")
    text = json.dumps(lines(capsys))
    assert KEY not in text
    assert "hunter2" not in text
    assert "ValueError: bad key ppo_***" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"[{KEY}]", "[ppo_***]"),
        ("ppo_loss_total_value", "ppo_loss_total_value"),
        ("postgresql+psycopg://ann:p:w@h:5/db", "postgresql+psycopg://ann:***@h:5/db"),
        ("redis://:pw@h", "redis://:***@h"),
        ("https://h/a@b:c", "https://h/a@b:c"),
        ("Bearer abcdefgh12", "Bearer ***"),
    ],
)
def test_mask(text: str, shown: str) -> None:
    assert mask(text) == shown
