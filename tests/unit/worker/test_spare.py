"""Keeping a process that waits, with small programs instead of engines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.servers import wait_until
from tests.support.workers import process_is_gone
from worker import spare as module
from worker.engine_log import EngineLog
from worker.spare import Spare

WAITS = [sys.executable, "-c", "import sys; print(sys.stdin.readline(), file=sys.stderr)"]
DIES = [sys.executable, "-c", "import sys; sys.exit(2)"]


def test_it_gets_its_arguments_as_one_line_and_is_given_away_once(tmp_path: Path) -> None:
    spare = Spare(WAITS, {})
    spare.keep()
    pid = spare.pid
    spare.keep()
    assert spare.pid == pid, "one waits already"
    log = EngineLog(tmp_path / "log", max_bytes=10**6)
    engine = spare.take(["a b", "ü\n"], log)
    assert engine is not None
    assert engine.pid == pid
    assert spare.take([], log) is None
    wait_until(lambda: not list(engine.read(0.1)) and engine.ended(), 60, lambda: "it does not end")
    engine.close()
    assert log.tail().splitlines()[0] == '["a b", "\\u00fc\\n"]'


def test_one_that_dies_is_replaced_later_and_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    spare = Spare(DIES, {})
    started: list[tuple[float, int | None]] = []
    for now in range(0, 100, 5):
        before = spare.pid
        spare.keep()
        if spare.pid not in (before, None):
            started.append((now, spare.pid))
            wait_until(lambda: process_is_gone(started[-1][1] or 0), 60, lambda: "it lives")
    assert [at for at, _ in started] == [0, 35], "30 s after the first death was noticed, and not yet after the second"
    assert spare.pid is None


def test_a_command_that_cannot_run_is_no_error() -> None:
    spare = Spare(["/nonexistent"], {})
    spare.keep()
    assert spare.pid is None


def test_none_waits_after_the_end() -> None:
    spare = Spare(WAITS, {})
    spare.keep()
    pid = spare.pid or 0
    spare.close()
    assert process_is_gone(pid)
    spare.keep()
    assert spare.pid is None
