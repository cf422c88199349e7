"""The stream of a job: reconnects, polling, the end."""

from __future__ import annotations

import itertools
import json

import pytest

from jobs.states import JobState
from ppo_client import errors, sse
from ppo_client.client import PPOClient, WaitTimeout
from ppo_client.transport import RetryPolicy
from ppo_client.updates import End, Gap, Happened, Snapshot, Step, from_answers
from tests.support.client_values import START, ended, event_view, job_view, metrics_view
from tests.support.scripted_http import Reply, event_stream, json_reply, problem, serve

FAST = RetryPolicy(attempts=2, first_wait_seconds=0.01)


def frame(name: str, place: str, data: str) -> str:
    return f"event: {name}\nid: {place}\ndata: {data}\n\n"


def snapshot(place: str = "0") -> str:
    return frame("job", place, job_view().model_dump_json())


def step(number: int, place: str) -> str:
    return frame(
        "step", place, json.dumps({"step": number, "time": START.isoformat(), "metrics": {"objective/kl": 0.5}})
    )


END = frame("end", "2.2.end", ended().model_dump_json())


def watched(url: str, **options: object) -> list:
    with PPOClient(url, retry=FAST, **options) as client:
        return list(client.watch("job_01", poll_seconds=0.01))


def test_a_cut_stream_is_taken_up_behind_the_last_update():
    first = event_stream("retry: 3000\n\n", snapshot(), frame("event", "1", event_view(1).model_dump_json()), cut=True)
    second = event_stream(snapshot("1"), ": heartbeat\n\n", step(1, "1.1"))
    third = event_stream(snapshot("1.1"), step(2, "1.2"), END)
    with serve([first, second, third]) as server:
        updates = watched(server.url)
    kinds = [type(update) for update in updates]
    assert kinds == [Snapshot, Happened, Snapshot, Step, Snapshot, Step, End]
    assert [asked.headers["Last-Event-ID"] for asked in server.asked] == ["0", "1", "1.1"]
    assert updates[-1].job.state is JobState.SUCCEEDED


def test_a_gap_is_told_by_stream_and_by_polling():
    gap = frame("gap", "1.1", json.dumps({"from_step": 2, "to_step": 900}))
    with serve([event_stream(snapshot(), gap, step(900, "1.900"), END)]) as server:
        updates = watched(server.url)
    assert [type(update) for update in updates] == [Snapshot, Gap, Step, End]
    assert (updates[1].cursor, updates[1].from_step, updates[1].to_step) == ("1.1", 2, 900)
    thinned = metrics_view(3).model_copy(update={"downsampled": True})
    polled = list(from_answers("0", job_view(), [], thinned))
    assert [type(update) for update in polled[:3]] == [Snapshot, Gap, Step]
    assert (polled[1].from_step, polled[1].to_step) == (thinned.steps[0], thinned.steps[-1])


def test_a_service_that_restarts_is_waited_for():
    replies = [event_stream(snapshot()), *[Reply(drop=True)] * 4, event_stream(snapshot(), END)]
    with serve(replies) as server:
        assert isinstance(watched(server.url)[-1], End)
    assert len(server.asked) == 6


def test_a_service_that_stays_away_ends_the_watch():
    with serve([Reply(drop=True)] * 50) as server, pytest.raises(errors.ServiceUnreachable):
        watched(server.url, patience_seconds=0.1)


def test_an_unknown_job_ends_the_watch_at_once():
    with serve([problem(404, title="no such job")]) as server, pytest.raises(errors.NotFound):
        watched(server.url)
    assert len(server.asked) == 1


def test_where_streams_do_not_come_through_the_job_is_polled():
    def poll(job, events, steps):
        page = {"items": [event.model_dump(mode="json") for event in events], "next_page_token": None}
        return [json_reply(job.model_dump(mode="json")), json_reply(page), json_reply(steps.model_dump(mode="json"))]

    replies = [
        Reply(200, b"<html>login</html>", {"Content-Type": "text/html"}),
        *poll(job_view(), [event_view(1)], metrics_view(2)),
        *poll(ended(), [event_view(2)], metrics_view(0)),
        *poll(ended(), [], metrics_view(0)),
    ]
    with serve(replies) as server:
        updates = watched(server.url)
    told = [update for update in updates if not isinstance(update, Snapshot)]
    assert [type(update) for update in told] == [Happened, Step, Step, Happened, End]
    assert [update.cursor for update in told] == ["1", "1.1", "1.2", "2.2", "2.2"]
    assert "from_step=0" in server.asked[3].path
    assert "after_seq=1" in server.asked[5].path
    assert "from_step=3" in server.asked[6].path


def test_polled_steps_come_again_behind_a_rollback():
    def poll(job, events, steps):
        page = {"items": [event.model_dump(mode="json") for event in events], "next_page_token": None}
        return [json_reply(job.model_dump(mode="json")), json_reply(page), json_reply(steps.model_dump(mode="json"))]

    back = event_view(2, type="rolled_back", data={"step": 2, "to_step": 1, "learning_rate_factor": 0.5})
    redone = metrics_view(2).model_copy(
        update={"steps": [2], "times": [START.replace(hour=9)], "series": {"env/reward_mean": [0.9]}}
    )
    replies = [
        Reply(200, b"<html>login</html>", {"Content-Type": "text/html"}),
        *poll(job_view(), [event_view(1)], metrics_view(2)),
        *poll(ended(), [back], redone),
        *poll(ended(), [], metrics_view(0)),
    ]
    with serve(replies) as server:
        told = [update for update in watched(server.url) if not isinstance(update, Snapshot)]
    assert [type(update) for update in told] == [Happened, Step, Step, Happened, Step, End]
    assert [update.cursor for update in told] == ["1", "1.1", "1.2", "2.1", "2.2", "2.2"]
    assert "from_step=2" in server.asked[6].path


def test_events_survive_any_cut_of_the_bytes_and_line_separators_in_json():
    text = snapshot() + frame("event", "1.0", event_view(1, message="a\u2028b\x85c").model_dump_json()) + END
    expected = list(sse.parse(sse.lines([text])))
    assert [event.event for event in expected] == ["job", "event", "end"]
    assert "a\u2028b\x85c" in expected[1].data
    for cut in range(0, len(text), 7):
        assert list(sse.parse(sse.lines([text[:cut], text[cut:]]))) == expected
    assert list(sse.parse(sse.lines(itertools.chain(text.replace("\n", "\r\n"))))) == expected


def test_an_unfinished_event_is_dropped():
    assert list(sse.parse(sse.lines(["event: step\ndata: {}\n"]))) == []


def test_wait_returns_the_ended_job_and_times_out_on_a_running_one():
    running, done = (json_reply(job.model_dump(mode="json")) for job in (job_view(), ended(JobState.FAILED)))
    with (
        serve([running, Reply(drop=True), Reply(drop=True), done]) as server,
        PPOClient(server.url, retry=FAST) as client,
    ):
        assert client.wait("job_01", poll_seconds=0.01).state is JobState.FAILED
    with (
        serve([running] * 100) as server,
        PPOClient(server.url) as client,
        pytest.raises(WaitTimeout, match=r"0\.05 s"),
    ):
        client.wait("job_01", timeout_seconds=0.05, poll_seconds=0.01)
