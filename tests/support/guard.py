"""Run a server as a child and end it when standard input closes: no server outlives the tests, not even killed ones.

Usage: guard.py [--user UID] FOLDER COMMAND…

Whoever wants the server's folder to stay writes a byte before closing; whoever was killed did not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading

_PATIENCE_SECONDS = 10.0


def main() -> int:
    """Exit status of the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int)
    parser.add_argument("folder")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    # A terminal's Ctrl-C reaches the whole group; the server must end after the tests, not with them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    identity = {} if arguments.user is None else {"user": arguments.user, "group": arguments.user, "extra_groups": []}
    server = subprocess.Popen(arguments.command, stdin=subprocess.DEVNULL, start_new_session=True, **identity)
    closed = threading.Event()
    ending = threading.Thread(target=_end_on_eof, args=(server, arguments.folder, closed), daemon=True)
    ending.start()
    status = server.wait()
    if closed.is_set():
        ending.join()
    return status


def _end_on_eof(server: subprocess.Popen[bytes], folder: str, closed: threading.Event) -> None:
    keep = sys.stdin.buffer.read()
    closed.set()
    # PostgreSQL: a clean shutdown, or an immediate one that leaves nothing worth keeping.
    server.send_signal(signal.SIGINT if keep else signal.SIGQUIT)
    try:
        server.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
