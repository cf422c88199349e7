"""The wall clock of a process that finds this on its path jumps every second: an hour ahead, back, behind, back.

Only what Python's `time` tells; the clocks that never jump, and the file system's, stay. Notes in $JUMPS where it was.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_HOUR = 3600
_real = {"time": time.time, "time_ns": time.time_ns, "clock_gettime": time.clock_gettime}


def _jump() -> int:
    jump = (0, _HOUR, 0, -_HOUR)[int(time.monotonic()) % 4]
    with Path(os.environ["JUMPS"]).open("a") as notes:
        notes.write(f"{jump}\n")
    return jump


def _clock_gettime(clock: int) -> float:
    return _real["clock_gettime"](clock) + (_jump() if clock == time.CLOCK_REALTIME else 0)


time.time = lambda: _real["time"]() + _jump()
time.time_ns = lambda: _real["time_ns"]() + _jump() * 10**9
time.clock_gettime = _clock_gettime
