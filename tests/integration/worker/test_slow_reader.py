"""An engine that has ended before its events were recorded: a slow or absent database must not cost its last words."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ppo_engine.events import Finished
from worker import process
from worker.engine_log import EngineLog
from worker.process import start_process

pytestmark = pytest.mark.slow

WRITE = """
for _ in range(5000):
    print('{"event": "phase", "phase": "rollout", "step": 1}')
print('{"event": "finished", "outcome": "completed", "step": 1}')
"""


def test_what_an_ended_engine_wrote_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LINGER_SECONDS", 0.1)
    log = EngineLog(tmp_path / "engine.log", max_bytes=10**6, secrets=[])
    engine = start_process([sys.executable, "-c", WRITE], dict(os.environ), log)
    seen = []
    while not engine.ended():
        seen += engine.read(0.05)
        time.sleep(0.3)  # as a report that waits for the database
    engine.close()
    assert len(seen) == 5001
    assert isinstance(seen[-1], Finished)
