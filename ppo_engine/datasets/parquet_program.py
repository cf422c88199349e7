"""Turns Parquet on standard input into JSON lines on standard output: a program, with little memory, that imports
nothing of ours.

A file of 13 kB can hold 400 MB of one letter, and a text that all its rows share once for all of them. Its reader may
fail or be killed; whoever waits for its lines must not. Lines: `{"values": {…}}` for a row, or
`{"fault": "…"}` as the last.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

ROWS_AT_ONCE = 64
"""Rows that are in memory at the same time."""
MEMORY_BYTES = 1 << 30
"""What reading may take, beside the libraries."""
CPU_SECONDS = 300


def main() -> None:
    """Write the rows of the file that is the standard input."""
    try:  # not above: the name of this program is imported where nobody has pyarrow
        from pyarrow import ArrowException, set_memory_pool, system_memory_pool  # noqa: PLC0415
    except ModuleNotFoundError:
        _write({"fault": "Parquet is read by pyarrow, which is not installed here (the extra `parquet`)"})
        return

    set_memory_pool(system_memory_pool())  # the others reserve room of their own
    _limit()
    try:
        for row in _rows(sys.stdin.buffer):
            _write({"values": row})
    except MemoryError:  # also Arrow's
        _write({"fault": f"needs more than {MEMORY_BYTES} bytes of memory to read"})
    except (ArrowException, OSError, ValueError) as error:
        _write({"fault": f"not readable as Parquet: {(str(error).splitlines() or [''])[0][:200]}"})


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def _rows(source: BinaryIO) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    with ParquetFile(source, memory_map=False, buffer_size=1 << 20, pre_buffer=False) as file:
        if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names):
            raise ValueError("two columns have the same name")
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
            yield from (_as_json(record) for record in batch.to_pylist())


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} has no JSON form")


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
