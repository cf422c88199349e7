"""`python -m ppo_engine wait`: a process that has imported everything and waits for the run or errand it is for.

The caller writes one line to standard input, a JSON list with the words of a command, and the process becomes that.
It imports no CUDA context and reads no model, so all it holds while it waits is memory for code. If the line does
not come because the caller is gone, or if code has changed on the disk since it was imported, it leaves without a word.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

STALE_EXIT = 76
"""Exit code of a process that does not begin because what it imported is not what is on the disk now."""
_MAX_LINE_BYTES = 2**20

# What a run imports late: at the first model of a family, at the first text generated.
_LATE = (
    "ppo_engine.program.run",
    "transformers.generation.utils",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
)


def wait() -> list[str]:
    """Import what a run needs, wait for its words and return them; ends the process instead if none come."""
    _name_process("ppo-imports")
    given: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(given,), name="wait", daemon=True).start()
    for module in _LATE:
        importlib.import_module(module)
    files = sorted(_imported_files())
    imported = _stamps(files)
    _name_process("ppo-waits")
    arguments = [str(argument) for argument in json.loads(given.get())]
    if _stamps(files) != imported:
        os._exit(STALE_EXIT)
    _name_process("ppo-runs")
    return arguments


def _listen(given: queue.SimpleQueue[bytes]) -> None:
    """Pass on the first line; without one, end the process, even amid its imports. Reads nothing behind that line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte or len(line) > _MAX_LINE_BYTES:
            os._exit(0)
        line += byte
    given.put(bytes(line))


def _imported_files() -> set[str]:
    return {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}


def _stamps(paths: Iterable[str]) -> list[tuple[int, int, int] | None]:
    """What the disk says about files: another answer later means another file."""
    return [_stamp(Path(path)) for path in paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _name_process(name: str) -> None:
    """The name that `ps -o comm` shows: the command line stays the same when a waiting process begins its run."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)
