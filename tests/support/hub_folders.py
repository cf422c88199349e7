"""Folders of prompts for tests: files of every kind, and the layouts that the hub's tools leave on disk."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COMMIT = "5f3b1c9d5e0f4a7b8c6d2e1f0a9b8c7d6e5f4a3b"


def json_lines(*prompts: Any, field: str = "prompt") -> bytes:
    return b"".join(json.dumps({field: prompt, "answer": n}).encode() + b"\n" for n, prompt in enumerate(prompts))


def parquet(**columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def write(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    """A folder with these files; returns it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def cached(root: Path, files: Mapping[str, bytes | str], *, commit: str = COMMIT) -> Path:
    """A dataset in the layout of the hub's cache: blobs, a snapshot of links to them, and the branch main at it."""
    folder = root / "datasets--owner--name"
    for number, (name, content) in enumerate(files.items()):
        blob = write(folder / "blobs", {f"{commit}-{number}": content}) / f"{commit}-{number}"
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        depth = len(Path(name).parts) + 1
        link.symlink_to(Path(*[".."] * depth, "blobs", blob.name))
    write(folder, {"refs/main": commit})
    return folder
