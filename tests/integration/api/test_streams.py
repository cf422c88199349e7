"""A job followed live through both doors, while it is moved on from this process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from api.rpc.v1 import job_service_pb2 as pb
from jobs import lifecycle
from jobs.auth import LOCAL
from jobs.db import Database
from jobs.tables import JobMetrics
from ppo_engine.events import StepDone
from tests.support.attempts import (
    ERROR,
    claimed,
    give_back,
    record_steps,
    record_steps_and_checkpoint,
    rolled_back,
    started,
    submitted,
)
from tests.support.grpc_api import stub_at
from tests.support.http_api import Process, Served, served_on, settings
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow


def frames(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events of a stream as they come: name, id, and data as an object."""
    frame: dict[str, Any] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            frame[name] = json.loads(value) if name == "data" else value
        else:
            if "event" in frame:
                yield frame
            frame = {}


@contextmanager
def followed(served: Served | Process, job_id: str, last_id: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """The job's stream over HTTP."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    url = f"{served.http}/v1/jobs/{job_id}/events"
    with httpx.stream("GET", url, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield frames(response.iter_lines())


def short(frame: dict[str, Any]) -> str:
    """One word for a frame."""
    data = frame["data"]
    return {"job": "job", "event": data.get("type"), "step": f"step {data.get('step')}", "end": "end"}[frame["event"]]


def test_a_stream_shows_each_thing_as_it_happens_and_then_ends(served: Served, database: Database):
    job_id = submitted(database, LOCAL)
    with followed(served, job_id) as stream:
        first = next(stream)
        assert (first["event"], first["data"]["state"]) == ("job", "queued")
        assert short(next(stream)) == "submitted"
        held = claimed(database, job_id)
        assert short(next(stream)) == "claimed"
        lifecycle.record_started(database, held.lease, started())
        assert short(next(stream)) == "started"
        record_steps(database, held, 1, 1)
        step = next(stream)
        assert step["data"]["metrics"]["ppo/mean_scores"] == pytest.approx(0.1)
        assert (short(step), step["id"]) == ("step 1", "3.1")
        record_steps_and_checkpoint(database, held, 2, 3)
        assert [short(next(stream)) for _ in range(3)] == ["step 2", "step 3", "checkpoint"]
        lifecycle.succeed(database, held.lease)
        assert short(next(stream)) == "succeeded"
        end = next(stream)
        assert (end["event"], end["data"]["state"], end["data"]["progress"]["step"]) == ("end", "succeeded", 3)
        assert list(stream) == []


def test_a_broken_stream_goes_on_where_it_broke(served: Served, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    record_steps(database, held, 1, 2)
    with followed(served, job_id) as stream:
        seen = [next(stream) for _ in range(4)]
    assert [short(frame) for frame in seen] == ["job", "submitted", "claimed", "step 1"]
    record_steps(database, held, 3, 3)
    lifecycle.succeed(database, held.lease)
    with followed(served, job_id, seen[-1]["id"]) as stream:
        rest = list(stream)
    assert [short(frame) for frame in rest] == ["job", "step 2", "step 3", "succeeded", "end"]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": rest[-1]["id"]}
    assert httpx.get(f"{served.http}/v1/jobs/{job_id}/events", headers=headers, timeout=60).status_code == 204


def test_a_step_repeated_after_a_crash_is_shown_once(served: Served, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps(database, held, 3, 4)
    with followed(served, job_id) as stream:
        steps = [frame["data"]["step"] for frame in (next(stream) for _ in range(8)) if frame["event"] == "step"]
        assert steps == [1, 2, 3, 4]
        give_back(database, held)
        again = claimed(database, job_id)
        assert again.checkpoint
        record_steps(database, again, 3, 5)
        lifecycle.succeed(database, again.lease)
        rest = [short(frame) for frame in stream]
    assert rest == ["requeued", "claimed", "step 5", "succeeded", "end"]


def test_steps_that_were_rolled_back_come_again(served: Served, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    lifecycle.record_step(database, held.lease, StepDone(step=0, scalars={"eval/reward_mean": 0.5}))
    record_steps_and_checkpoint(database, held, 1, 2)
    record_steps(database, held, 3, 4)
    with followed(served, job_id) as stream, stub_at(served.grpc) as stub:
        seen = [next(stream) for _ in range(9)]
        told = ["job", "submitted", "claimed", "step 0", "step 1", "step 2", "checkpoint", "step 3", "step 4"]
        assert [short(frame) for frame in seen] == told
        assert [frame["id"] for frame in seen[:5]] == ["0", "1", "2", "2.0", "2.1"]
        calls = stub.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=60)
        updates = [next(calls) for _ in range(9)]
        assert [update.cursor.HasField("step") for update in updates[:4]] == [False, False, False, True]
        lifecycle.record_rollback(database, held.lease, rolled_back(4, 2))
        # The steps that were seen come again, though they are all there before anybody looks.
        record_steps(database, held, 3, 5)
        lifecycle.succeed(database, held.lease)
        again = ["rolled_back", "step 3", "step 4", "step 5", "succeeded", "end"]
        assert [short(frame) for frame in stream] == again
        assert [update.step.step for update in calls if update.WhichOneof("update") == "step"] == [3, 4, 5]
    for cursor in ("3.4", "3.3"):  # whoever was cut before the rollback
        with followed(served, job_id, cursor) as stream:
            assert [short(frame) for frame in stream][1:] == again
    with stub_at(served.grpc) as stub:
        rest = list(stub.WatchJob(pb.WatchJobRequest(job_id=job_id, after=pb.Cursor(seq=2, step=0)), timeout=60))
    steps = [update.step.step for update in rest if update.WhichOneof("update") == "step"]
    assert steps == [1, 2, 3, 4, 5]


def test_a_long_past_is_thinned_and_its_last_step_is_there(served: Served, database: Database):
    job_id = submitted(database, LOCAL, ppo__steps=2500)
    held = claimed(database, job_id)
    rows = [JobMetrics(job_id=job_id, step=n, lease_token=held.lease.token, scalars={}) for n in range(1, 2501)]
    with database.transaction() as session:
        session.add_all(rows)
    lifecycle.succeed(database, held.lease)
    with followed(served, job_id) as stream:
        steps = [frame["data"]["step"] for frame in stream if frame["event"] == "step"]
    assert len(steps) <= 1000
    assert steps[-1] == 2500
    assert steps == sorted(set(steps))


def test_watch_job_says_the_same_as_the_stream_over_http(served: Served, database: Database):
    job_id = submitted(database, LOCAL)
    held = claimed(database, job_id)
    with stub_at(served.grpc) as stub:
        updates = stub.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=60)
        assert next(updates).job.state == pb.JOB_STATE_RUNNING
        assert [next(updates).event.type for _ in range(2)] == ["submitted", "claimed"]
        record_steps_and_checkpoint(database, held, 1, 2)
        one, two, saved = (next(updates) for _ in range(3))
        assert (one.step.step, two.step.step, saved.event.data["step"]) == (1, 2, 2)
        assert one.step.metrics["time/ppo/total"] == 2.0
        assert (one.cursor.seq, one.cursor.step) == (2, 1)
        lifecycle.fail(database, held.lease, ERROR)
        *_, last = updates
        assert last.terminal
        assert last.job.state == pb.JOB_STATE_FAILED
        assert last.job.error.code == "non_finite"

        rest = list(stub.WatchJob(pb.WatchJobRequest(job_id=job_id, after=two.cursor), timeout=60))
    assert [update.WhichOneof("update") for update in rest] == ["job", "event", "event", "job"]
    assert [update.terminal for update in rest] == [False, False, False, True]
    with followed(served, job_id, f"{two.cursor.seq}.{two.cursor.step}") as stream:
        assert [short(frame) for frame in stream] == ["job", "checkpoint", "failed", "end"]


def test_followers_who_leave_hold_nothing(sqlite_process: Process, sqlite_url: str):
    db = Database(sqlite_url)
    job_id = submitted(db, LOCAL)

    def open_streams() -> float:
        page = httpx.get(f"{sqlite_process.http}/metrics", timeout=60).text.splitlines()
        return sum(float(line.split()[-1]) for line in page if line.startswith("ppo_open_streams{"))

    def threads() -> int:
        return len(list(Path(f"/proc/{sqlite_process.popen.pid}/task").iterdir()))

    with stub_at(sqlite_process.grpc) as stub:
        calls = [stub.WatchJob(pb.WatchJobRequest(job_id=job_id)) for _ in range(30)]
        assert {next(call).WhichOneof("update") for call in calls} == {"job"}
        late = stub.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=0.5)
        with pytest.raises(grpc.RpcError) as caught:
            list(late)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert open_streams() == 30
        for call in calls:
            call.cancel()
        for _ in range(10):
            with followed(sqlite_process, job_id) as stream:
                next(stream)
        wait_until(lambda: open_streams() == 0, 60, lambda: f"{open_streams()} streams are still open")
    # Idle threads wait for the next call; they are bounded by PPO_API_THREADS, whatever the number of followers.
    assert threads() < 20 + 15
    assert httpx.get(f"{sqlite_process.http}/v1/jobs/{job_id}", timeout=60).status_code == 200
    db.dispose()


def test_sigterm_lets_followers_go_and_ends_with_0(sqlite_process: Process, sqlite_url: str):
    db = Database(sqlite_url)
    job_id = submitted(db, LOCAL)
    with stub_at(sqlite_process.grpc) as stub, followed(sqlite_process, job_id) as stream:
        watching = stub.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=60)
        assert [short(next(stream)), short(next(stream))] == ["job", "submitted"]
        assert [next(watching).WhichOneof("update") for _ in range(2)] == ["job", "event"]
        assert sqlite_process.terminate() == 0
        # Cut, and seen to be cut: no `end` here, a status that says "try again" there.
        assert list(stream) == []
        with pytest.raises(grpc.RpcError) as caught:
            list(watching)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert '"api_stopped"' in sqlite_process.log.read_text()
    db.dispose()


def test_a_client_that_takes_nothing_is_let_go(sqlite_url: str, home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("api.http.event_stream.STUCK_SECONDS", 0.3)
    db = Database(sqlite_url)
    job_id = submitted(db, LOCAL, ppo__steps=1000)
    held = claimed(db, job_id)
    scalars = {f"ppo/number_{index}": index / 7 for index in range(300)}
    rows = [JobMetrics(job_id=job_id, step=n, lease_token=held.lease.token, scalars=scalars) for n in range(1, 1001)]
    with db.transaction() as session:
        session.add_all(rows)
    with served_on(db, settings(home, sqlite_url, http_port=0, grpc_port=0)) as served, socket.socket() as stuck:
        open_streams = served.context.meters.streams.labels("http")._value
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = served.http.removeprefix("http://").split(":")
        stuck.connect((host, int(port)))
        path = f"/v1/jobs/{job_id}/events"
        stuck.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode())
        wait_until(lambda: open_streams.get() == 1, 60, lambda: "the stream does not begin")
        wait_until(lambda: open_streams.get() == 0, 60, lambda: "it waits for ever")
        assert served.context.hub._topics == {}
    db.dispose()
