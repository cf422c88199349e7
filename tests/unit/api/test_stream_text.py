"""Server-sent events as text, and places in a stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from api.http import sse
from api.watch import Cursor, Happened, Heartbeat, Step
from jobs.errors import InvalidArgument
from jobs.states import JobState
from jobs.views import JobEventView

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def fields(frame: str) -> dict[str, str]:
    assert frame.endswith("\n\n")
    return dict(line.split(": ", 1) for line in frame.strip().split("\n"))


def test_a_step_has_its_place_and_its_numbers():
    frame = fields(sse.frame(Step(3, NOON, {"objective/kl": 0.5}), Cursor(2, 3)))
    assert (frame["event"], frame["id"]) == ("step", "2.3")
    assert json.loads(frame["data"]) == {
        "step": 3,
        "time": "2026-01-02T12:00:00+00:00",
        "metrics": {"objective/kl": 0.5},
    }


def test_text_with_line_ends_stays_on_one_line():
    event = JobEventView(
        seq=1, time=NOON, type="failed", state=JobState.FAILED, attempt=1, message="a\nb\r\n\nid: 9", data={}
    )
    frame = sse.frame(Happened(event), Cursor(1, 0))
    assert json.loads(fields(frame)["data"])["message"] == event.message


def test_a_heartbeat_is_a_comment():
    assert sse.frame(Heartbeat(), Cursor()) == ": heartbeat\n\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (None, (Cursor(), False)),
        ("7", (Cursor(7), False)),
        ("7.0", (Cursor(7, 0), False)),
        ("7.40", (Cursor(7, 40), False)),
        ("7.40.end", (Cursor(7, 40), True)),
    ],
)
def test_a_place_is_read_from_its_id(text: str | None, place: tuple[Cursor, bool]):
    assert sse.place_of(text) == place


@pytest.mark.parametrize("text", ["x", "-1", "1.", "1.2.3", "1 ", "\u0661", "9" * 40])
def test_other_ids_are_refused(text: str):
    with pytest.raises(InvalidArgument):
        sse.place_of(text)
