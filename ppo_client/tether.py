"""Runs a module as a program that cannot outlive its parent: `python -m ppo_client.tether MODULE [ARG]...`.

The parent holds the other end of standard input and never writes. However the parent ends, kill -9 included, the pipe
closes, and the program gets SIGTERM, then SIGKILL if it has not ended in time. The process id stays the program's own.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_SECONDS = 60.0


def _watch_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Become the module named by the first argument."""
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    threading.Thread(target=_watch_parent, name="parent-watch", daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
