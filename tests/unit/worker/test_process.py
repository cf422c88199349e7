"""The engine as a process: real children and real signals, without a database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.events import CheckpointSaved, Event, Finished, Started, StepDone
from tests.support.servers import wait_until
from tests.support.workers import SCRIPTED_ENGINE, process_is_gone
from worker.engine_log import EngineLog
from worker.process import EngineProcess, Exit, ProtocolError, spawn

pytestmark = pytest.mark.slow


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[EngineProcess]]:
    engines: list[EngineProcess] = []
    yield engines
    for engine in engines:
        engine.close()


def start(
    started: list[EngineProcess], folder: Path, script: Mapping[str, Any], *, steps: int = 5
) -> tuple[EngineProcess, EngineLog]:
    spec = {"prompts": {"inline": [json.dumps(script)]}, "ppo": {"steps": steps}, "checkpoint": {"every_steps": 2}}
    (folder / "spec.json").write_text(json.dumps(spec))
    log = EngineLog(folder / "engine-1.log", max_bytes=10**6)
    command = [sys.executable, str(SCRIPTED_ENGINE), "run", str(folder / "spec.json"), "--out", str(folder)]
    engine = EngineProcess(spawn(command, {"PATH": os.environ["PATH"]}), log)
    started.append(engine)
    return engine, log


def read_all(engine: EngineProcess, seconds: float = 10.0) -> list[Event]:
    events: list[Event] = []
    until = time.monotonic() + seconds
    while not engine.ended():
        assert time.monotonic() < until, "the engine does not end"
        events += engine.read(0.1)
    return events


def test_a_run_from_the_first_event_to_the_last(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, _ = start(started, tmp_path, {})
    events = read_all(engine)
    assert engine.close() == Exit(code=0, signal=None)
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2, 3, 4, 5]
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [2, 4, 5]
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize(
    ("fault", "how"),
    [("exit_7", Exit(7, None)), ("sigkill", Exit(None, "SIGKILL")), ("segfault", Exit(None, "SIGSEGV"))],
)
def test_how_it_ended(started: list[EngineProcess], tmp_path: Path, fault: str, how: Exit) -> None:
    engine, _ = start(started, tmp_path, {"fault": fault, "at": 1})
    events = read_all(engine)
    assert engine.close() == how
    assert [event.step for event in events if isinstance(event, StepDone)] == [1]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("garbage", "not an event"), ("endless_line", "a line of more than"), ("nan", "env/reward_mean")],
)
def test_what_is_not_an_event_is_refused(
    started: list[EngineProcess], tmp_path: Path, fault: str, message: str
) -> None:
    engine, _ = start(started, tmp_path, {"fault": fault, "at": 1})
    with pytest.raises(ProtocolError, match=message):
        read_all(engine)


def test_half_a_line_of_a_killed_engine_is_not_garbage(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, _ = start(started, tmp_path, {"fault": "half_line", "at": 1})
    events = read_all(engine)
    assert engine.close() == Exit(None, "SIGKILL")
    assert isinstance(events[-1], StepDone)


def test_sigterm_ends_it_with_a_checkpoint(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, _ = start(started, tmp_path, {}, steps=10_000)
    events: list[Event] = []
    while not any(isinstance(event, StepDone) for event in events):
        events += engine.read(0.1)
    engine.terminate()
    events += read_all(engine)
    assert engine.close() == Exit(0, None)
    *_, checkpoint, finished = events
    assert isinstance(checkpoint, CheckpointSaved)
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.step) == ("stopped", checkpoint.step)


def test_what_it_leaves_behind_is_killed(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, _ = start(started, tmp_path, {"fault": "fork_and_exit", "at": 1})
    read_all(engine)
    assert engine.close() == Exit(7, None)
    grandchild = int((tmp_path / "grandchild").read_text())
    wait_until(lambda: process_is_gone(grandchild), 60, lambda: "the grandchild lives")


def test_a_flood_on_standard_error_is_taken_and_bounded(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, log = start(started, tmp_path, {"fault": "noise", "at": 1})
    events = read_all(engine, seconds=30)
    assert engine.close() == Exit(0, None)
    assert isinstance(events[-1], Finished)
    assert sum(path.stat().st_size for path in tmp_path.glob("engine-1.log*")) <= 2 * 10**6
    assert log.tail().splitlines()[-1] == "n" * 99


def test_a_hung_engine_dumps_its_stacks(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, log = start(started, tmp_path, {"fault": "hang", "at": 1})
    until = time.monotonic() + 30
    while "in _hang" not in log.tail():
        assert time.monotonic() < until, log.tail()
        if any(isinstance(event, Started) for event in list(engine.read(0.1))) or log.tail():
            engine.dump_stacks()
    engine.kill()
    read_all(engine)
    assert engine.close() == Exit(None, "SIGKILL")


def test_signals_after_the_end_reach_nobody(started: list[EngineProcess], tmp_path: Path) -> None:
    engine, _ = start(started, tmp_path, {})
    read_all(engine)
    engine.terminate()
    engine.kill()
    engine.dump_stacks()
    assert engine.close() == Exit(0, None)


def test_the_engine_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    """Even when the supervisor started other children after it: they must not hold the engine's pipe open."""
    spec = {"prompts": {"inline": ["{}"]}, "ppo": {"steps": 10_000}, "checkpoint": {"every_steps": 1000}}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    supervisor = textwrap.dedent(
        f"""
        import subprocess, sys, time
        from pathlib import Path
        from worker.engine_log import EngineLog
        from worker.process import EngineProcess, spawn
        folder = Path({str(tmp_path)!r})
        log = EngineLog(folder / "engine-1.log", max_bytes=10**6)
        command = [sys.executable, {str(SCRIPTED_ENGINE)!r}, "run", str(folder / "spec.json"), "--out", str(folder)]
        engine = EngineProcess(spawn(command, {{}}), log)
        other = subprocess.Popen(["sleep", "60"])
        print(engine.pid, other.pid, flush=True)
        while True:
            list(engine.read(0.1))
        """
    )
    process = subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    engine, other = map(int, process.stdout.readline().split())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    try:
        wait_until(lambda: process_is_gone(engine), 60, lambda: "the engine lives on")
    finally:
        os.kill(other, signal.SIGKILL)
