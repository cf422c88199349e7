"""What followers cost: one look for all of them, nothing held for the slow, nobody harmed by who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from api.hub import Hub, Pace
from api.threads import in_thread
from api.wait import wait
from api.watch import Cursor, End, Gap, Happened, Heartbeat, Snapshot, Source, Step, Update, watch
from jobs import lifecycle
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.tables import JobMetrics
from tests.support.attempts import ANN, checkpoint, claimed, record_steps, submitted

PACE = Pace(first_seconds=0.05, slowest_seconds=0.1)


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    yield database
    database.dispose()


@contextmanager
def statements() -> Iterator[list[str]]:
    """Everything that is executed meanwhile, transactions apart."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.extend([statement] if not statement.startswith(("BEGIN", "PRAGMA")) else [])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


class Followers:
    """Streams of some jobs, read as they come."""

    def __init__(self, db: Database, job_ids: list[str]) -> None:
        self.db, self.hub, self.stopping = db, Hub(), asyncio.Event()
        self.seen: list[list[Update]] = [[] for _ in job_ids]
        self.tasks = [
            asyncio.create_task(self._read(job_id, seen)) for job_id, seen in zip(job_ids, self.seen, strict=True)
        ]

    def stream(self, job_id: str) -> AsyncGenerator[tuple[Update, Cursor], None]:
        return watch(Source(self.db, ANN, job_id, self.stopping), Cursor(), PACE, self.hub)

    async def _read(self, job_id: str, seen: list[Update]) -> None:
        async with aclosing(self.stream(job_id)) as updates:
            async for update, _ in updates:
                seen.append(update)

    async def all_have(self, count: int) -> None:
        async with asyncio.timeout(20):
            while any(len(seen) < count for seen in self.seen):
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def words(seen: list[Update]) -> list[str]:
    names = {Snapshot: lambda _: "job", Happened: lambda u: u.event.type, Step: lambda u: f"step {u.step}"}
    return [names.get(type(update), lambda u: type(u).__name__.lower())(update) for update in seen]


def test_two_hundred_followers_cost_what_one_costs(db: Database):
    job_id = submitted(db, ppo__steps=10)
    held = claimed(db, job_id)

    async def follow(count: int) -> tuple[int, int, list[list[Update]]]:
        followers = Followers(db, [job_id] * count)
        await followers.all_have(3)
        await asyncio.sleep(0.4)
        with statements() as idle:
            await asyncio.sleep(1.0)
        before = len(followers.seen[0])
        first = held_steps[0]
        with statements() as busy:
            for number in range(first, first + 3):
                await in_thread(record_steps, db, held, number, number)
                await followers.all_have(before + number - first + 1)
        held_steps[0] += 3
        await followers.end()
        reads = [text for text in busy if text.startswith("SELECT") and text not in idle]
        return len(idle), len(reads), followers.seen

    held_steps = [1]
    _, alone_busy, _ = asyncio.run(follow(1))
    idle, busy, seen = asyncio.run(follow(200))
    assert 1 <= idle <= 20, "one statement per look"
    assert 0 < busy <= 3 * alone_busy, "now and then a reading is shared by a part of them; never is it one for each"
    assert {tuple(words(item)) for item in seen} == {
        ("job", "submitted", "claimed", *(f"step {number}" for number in range(1, 7)))
    }


def test_many_jobs_are_looked_at_in_one_statement(db: Database):
    job_ids = [submitted(db) for _ in range(40)]

    async def follow() -> list[str]:
        followers = Followers(db, job_ids * 5)
        await followers.all_have(2)
        await asyncio.sleep(0.4)
        with statements() as idle:
            await asyncio.sleep(1.0)
        await followers.end()
        assert all(words(seen) == ["job", "submitted"] for seen in followers.seen)
        return idle

    idle = asyncio.run(follow())
    assert 1 <= len(idle) <= 20
    assert len(set(idle)) == 1


def test_a_slow_reader_is_told_of_the_gap_and_costs_nothing(db: Database):
    job_id = submitted(db, ppo__steps=4000)
    held = claimed(db, job_id)
    record_steps(db, held, 1, 1)

    def run_ahead() -> None:
        rows = [JobMetrics(job_id=job_id, step=n, lease_token=held.lease.token, scalars={}) for n in range(2, 3002)]
        with db.transaction() as session:
            session.add_all(rows)
        lifecycle.succeed(db, held.lease)

    async def follow() -> list[Update]:
        followers = Followers(db, [job_id])
        async with aclosing(followers.stream(job_id)) as slow:
            seen = [(await anext(slow))[0] for _ in range(4)]
            await in_thread(run_ahead)
            async with asyncio.timeout(20):
                await followers.tasks[0]
            assert followers.hub._topics[job_id].followers == 1
            seen += [update async for update, _ in slow]
        assert followers.hub._topics == {}
        return seen

    seen = asyncio.run(follow())
    assert words(seen[:4]) == ["job", "submitted", "claimed", "step 1"]
    gaps = [update for update in seen if isinstance(update, Gap)]
    assert [(gap.from_step, gap.to_step) for gap in gaps] == [(2, 3001)]
    steps = [update.step for update in seen if isinstance(update, Step)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 3001
    assert len(steps) <= 1001
    assert isinstance(seen[-1], End)
    assert seen.index(gaps[0]) < next(
        i for i, update in enumerate(seen) if isinstance(update, Step) and update.step > 1
    )


def test_a_journal_longer_than_a_read_comes_whole(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("api.watch._EVENTS_PER_READ", 2)
    job_id = submitted(db)
    held = claimed(db, job_id)
    for number in range(1, 6):
        lifecycle.record_checkpoint(db, held.lease, checkpoint(number))

    async def follow() -> list[int]:
        followers = Followers(db, [job_id])
        await followers.all_have(8)
        await followers.end()
        return [update.event.seq for update in followers.seen[0] if isinstance(update, Happened)]

    assert asyncio.run(follow()) == [1, 2, 3, 4, 5, 6, 7]


def test_who_leaves_takes_nothing_from_the_others(db: Database):
    """Half of the followers are cancelled while the reading that they share is under way."""
    job_id = submitted(db)
    held = claimed(db, job_id)

    async def follow() -> list[list[str]]:
        followers = Followers(db, [job_id] * 20)
        await followers.all_have(3)
        await in_thread(record_steps, db, held, 1, 1)
        topic = followers.hub._topics[job_id]
        version = topic.version
        while topic.version == version:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in followers.tasks[:10]:
            task.cancel()
        await in_thread(lifecycle.succeed, db, held.lease)
        async with asyncio.timeout(20):
            await asyncio.gather(*followers.tasks[10:])
        return [words(seen) for seen in followers.seen[10:]]

    assert {tuple(seen) for seen in asyncio.run(follow())} == {
        ("job", "submitted", "claimed", "step 1", "succeeded", "end")
    }


def test_a_database_that_is_away_ends_all_streams_and_not_the_hub(db: Database, monkeypatch: pytest.MonkeyPatch):
    job_id = submitted(db)

    def away(*_: Any) -> None:
        raise Unavailable("the database cannot be reached, or is busy")

    async def follow() -> None:
        followers = Followers(db, [job_id] * 3)
        await followers.all_have(2)
        with monkeypatch.context() as patch:
            patch.setattr("api.hub.job_versions", away)
            async with asyncio.timeout(10):
                ends = await asyncio.gather(*followers.tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {Unavailable}
        async with aclosing(followers.stream(job_id)) as again, asyncio.timeout(10):
            assert [type((await anext(again))[0]) for _ in range(2)] == [Snapshot, Happened]
            await in_thread(claimed, db, job_id)
            assert words([(await anext(again))[0]]) == ["claimed"]

    asyncio.run(follow())


def test_silence_is_filled_with_heartbeats(db: Database, monkeypatch: pytest.MonkeyPatch):
    job_id = submitted(db)
    monkeypatch.setattr(f"{__name__}.PACE", Pace(0.05, 0.1, heartbeat_seconds=0.15))

    async def follow() -> list[Update]:
        async with aclosing(Followers(db, []).stream(job_id)) as updates, asyncio.timeout(10):
            return [(await anext(updates))[0] for _ in range(5)]

    assert [type(update) for update in asyncio.run(follow())] == [Snapshot, Happened, *[Heartbeat] * 3]


def test_a_hundred_long_polls_cost_what_one_costs(db: Database):
    job_id = submitted(db)
    held = claimed(db, job_id)
    sources = [Source(db, ANN, job_id, asyncio.Event()) for _ in range(100)]

    async def poll() -> tuple[list[str], set[str]]:
        hub = Hub()
        polls = [asyncio.create_task(wait(source, 20, PACE, hub)) for source in sources]
        await asyncio.sleep(1.0)
        with statements() as idle:
            await asyncio.sleep(0.5)
        await in_thread(record_steps, db, held, 1, 1)
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in polls)
        await in_thread(lifecycle.succeed, db, held.lease)
        async with asyncio.timeout(10):
            return idle, {job.state for job in await asyncio.gather(*polls)}

    idle, states = asyncio.run(poll())
    assert len(idle) <= 10
    assert states == {"succeeded"}
