"""Rows of a file, one at a time: JSON Lines, CSV, Parquet and plain text. No more than one row is held."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from ppo_engine import strict_json
from ppo_engine.datasets import parquet_program

MAX_ROW_BYTES = 1 << 20
TEXT = ".txt"
_MAX_LINE_BYTES = MAX_ROW_BYTES + 32
"""Of `parquet_program`: a row, and what stands around it."""
_NOTHING = subprocess.DEVNULL

csv.field_size_limit(MAX_ROW_BYTES)


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was read: where it is, for people, and its values or what is wrong with it."""

    place: str
    values: Any = None
    fault: str = ""
    size: int = 0
    """What was read for it: bytes, of CSV characters."""


def _lines_of(file: BinaryIO) -> Iterator[tuple[str, str, str, int]]:
    """Place, text, fault and size of every line that is not blank."""
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        place = f"line {number}"
        if len(line) > MAX_ROW_BYTES:
            yield place, "", f"longer than {MAX_ROW_BYTES} bytes", len(line)
            return
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            yield place, "", "not UTF-8", len(line)
            continue
        if text.strip():
            yield place, text, "", len(line)


def _text(file: BinaryIO) -> Iterator[Row]:
    """A line is a row with the one column `text`."""
    for place, text, fault, size in _lines_of(file):
        yield Row(place, {"text": text}, fault, size)


def _json_lines(file: BinaryIO) -> Iterator[Row]:
    for place, text, fault, size in _lines_of(file):
        if fault:
            yield Row(place, fault=fault, size=size)
            continue
        try:
            yield Row(place, strict_json.loads(text), size=size)
        except RecursionError:
            yield Row(place, fault="nested too deeply", size=size)
        except json.JSONDecodeError as error:
            yield Row(place, fault=f"not JSON: {error.msg} at column {error.colno}", size=size)
        except ValueError as error:
            yield Row(place, fault=f"not JSON: {error}", size=size)


class _Lines:
    """Lines of a CSV file, bounded: a quote that is never closed would swallow the rest of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        self._left = MAX_ROW_BYTES

    def __iter__(self) -> Iterator[str]:
        with self._file:
            while line := self._file.readline(self._left + 1):
                self._left -= len(line)
                if self._left < 0:
                    raise csv.Error(f"longer than {MAX_ROW_BYTES} characters: is a quote not closed?")
                yield line

    def begin_row(self) -> None:
        """What comes now belongs to another row."""
        self._left = MAX_ROW_BYTES

    @property
    def size(self) -> int:
        """Characters of the row so far."""
        return MAX_ROW_BYTES - self._left


def _csv(file: BinaryIO, delimiter: str = ",") -> Iterator[Row]:
    """The rows below the header. All values are text; an empty cell is empty text."""
    lines = _Lines(file)
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        lines.begin_row()
        place = f"line {reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except (csv.Error, UnicodeDecodeError) as error:
            yield Row(place, fault="not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not CSV: {error}")
            return
        if cells is None:
            return
        if header is None:
            header = cells
            if len(set(header)) < len(header) or not all(header):
                yield Row(place, fault="the header must name every column, each differently")
                return
        elif len(cells) == len(header):
            yield Row(place, dict(zip(header, cells, strict=True)), size=lines.size)
        elif cells:
            yield Row(place, fault=f"has {len(cells)} cells where the header has {len(header)}", size=lines.size)


def _parquet(file: BinaryIO) -> Iterator[Row]:
    """The rows as `parquet_program` writes them, in a process of its own that sees none of our environment."""
    command = [sys.executable, "-I", parquet_program.__file__]
    number = 0
    with subprocess.Popen(command, env={}, stdin=file, stdout=subprocess.PIPE, stderr=_NOTHING) as process:
        try:
            while line := process.stdout.readline(_MAX_LINE_BYTES) if process.stdout else b"":
                number += 1
                yield _parquet_row(f"row {number}", line)
            if process.wait() != 0:  # rows of a reader that was killed are not all there are
                yield Row(f"row {number + 1}", fault="not readable as Parquet")
        finally:
            process.kill()  # whoever reads no further leaves it at work


def _parquet_row(place: str, line: bytes) -> Row:
    if not line.endswith(b"\n"):
        return Row(place, fault=f"longer than {MAX_ROW_BYTES} bytes", size=len(line))
    return Row(place, **json.loads(line), size=len(line))


READERS: dict[str, Callable[[BinaryIO], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
    TEXT: _text,
}
"""How a file is read, by the ending of its name; the file is open at its beginning."""
