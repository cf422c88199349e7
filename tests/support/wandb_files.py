"""What wandb keeps of an offline run, read from its own file: records in LevelDB's log format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

FILE_HEADER = 7
BLOCK = 32_768
CHUNK_HEADER = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, LAST = 1, 4


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """One file: the run's id, its configuration, and what was logged, a dictionary per call."""

    run_id: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    folder: Path


def offline_runs(root: Path) -> list[OfflineRun]:
    """The offline runs below a folder, oldest first."""
    return [_read(path) for path in sorted(root.rglob("run-*.wandb"), key=lambda path: path.stat().st_ctime_ns)]


def _read(path: Path) -> OfflineRun:
    run_id, config, history = "", {}, []
    for record in _records(path.read_bytes()):
        if record.WhichOneof("record_type") == "run":
            run_id = record.run.run_id
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.WhichOneof("record_type") == "history":
            history.append(_unfold(record.history.item))
    return OfflineRun(run_id, config, history, path.parent)


def _unfold(items: Any) -> dict[str, Any]:
    logged: dict[str, Any] = {}
    for item in items:
        *outer, name = item.nested_key or [item.key]
        place = logged
        for key in outer:
            place = place.setdefault(key, {})
        place[name] = json.loads(item.value_json)
    return logged


def _records(data: bytes) -> Iterator[Any]:
    at, parts = FILE_HEADER, b""
    while at + CHUNK_HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < CHUNK_HEADER.size:  # the rest of a block holds nothing
            at += left
            continue
        _, length, kind = CHUNK_HEADER.unpack_from(data, at)
        at += CHUNK_HEADER.size
        parts += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
