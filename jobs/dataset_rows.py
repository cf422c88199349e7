"""Rows of an uploaded file, one at a time: JSON Lines, CSV and Parquet become checked JSON Lines and facts of columns.

Nothing is held but one row and what is known of each column, so a file may be larger than memory.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from jobs import parquet_program, strict_json
from jobs.errors import InvalidDataset, Problem
from jobs.plain import plain, pointer
from jobs.views import ColumnView

MAX_ROW_BYTES = 1 << 20
MAX_COLUMNS = 256
MAX_NAME_CHARACTERS = 128
_MAX_PROBLEMS = 50
_MAX_LINE_BYTES = MAX_ROW_BYTES + 32
"""Of `parquet_program`: a row, and what stands around it."""
_NOTHING = subprocess.DEVNULL

csv.field_size_limit(MAX_ROW_BYTES)


class DatasetFormat(StrEnum):
    """What an uploaded file is."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it was read: where it is, for people, and its values or what is wrong with it."""

    place: str
    values: Any = None
    fault: str = ""


@dataclass(slots=True)
class _Column:
    kinds: set[str] = field(default_factory=set)
    rows: int = 0
    longest: int = 0
    first_row_not_text: int | None = None
    first_row_not_chat: int | None = None


def convert(source: Path, kind: DatasetFormat, target: BinaryIO, max_bytes: int) -> tuple[int, list[ColumnView]]:
    """Write the rows of `source` to `target` as JSON Lines; returns their number and what their columns hold.

    Raises:
        InvalidDataset: with the first problems by row; or no row, or more than `max_bytes` of JSON Lines.
    """
    problems: list[Problem] = []
    columns: dict[str, _Column] = {}
    count = written = 0
    for count, row in enumerate(_READERS[kind](source), start=1):
        record = _checked(row, count, problems)
        if record is None:
            if len(problems) >= _MAX_PROBLEMS:
                break
            continue
        _observe(columns, record, count)
        if len(columns) > MAX_COLUMNS:
            raise _invalid([_problem(count, row.place, "too_many_columns", f"more than {MAX_COLUMNS} columns")])
        if not problems:
            written += target.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        if written > max_bytes:
            raise InvalidDataset(f"as JSON Lines its rows are larger than {max_bytes} bytes")
    if problems:
        raise _invalid(problems)
    if count == 0:
        raise InvalidDataset("the dataset has no row")
    return count, [_column_view(name, column) for name, column in columns.items()]


def _invalid(problems: list[Problem]) -> InvalidDataset:
    more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
    return InvalidDataset(f"the dataset cannot be used: {problems[0].detail}{more}", problems=problems)


def _problem(number: int, place: str, code: str, detail: str, loc: str = "") -> Problem:
    return Problem(pointer=f"/rows/{number}{loc}", code=code, detail=f"{place}: {detail}")


def _checked(row: Row, number: int, problems: list[Problem]) -> dict[str, Any] | None:
    """The row's object; None where it has problems, which are added."""
    if row.fault:
        problems.append(_problem(number, row.place, "unreadable", row.fault))
        return None
    if not isinstance(row.values, dict):
        problems.append(_problem(number, row.place, "not_an_object", "a row must be a JSON object"))
        return None
    found: list[Problem] = []
    for name in row.values:
        if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
            text = f"a column's name must have 1 to {MAX_NAME_CHARACTERS} characters"
            found.append(Problem(pointer=pointer((name[:MAX_NAME_CHARACTERS],)), code="bad_name", detail=text))
    record, faults = plain(row.values)
    found += faults
    problems += [_problem(number, row.place, fault.code, fault.detail, fault.pointer) for fault in found[:5]]
    return None if found else record


# --- columns ------------------------------------------------------------------------------------------------------


def _observe(columns: dict[str, _Column], record: dict[str, Any], number: int) -> None:
    for name in record:
        if name not in columns:
            earlier = 1 if number > 1 else None  # the first row lacks it
            columns[name] = _Column(first_row_not_text=earlier, first_row_not_chat=earlier)
    for name, column in columns.items():
        value = record.get(name)
        column.rows += name in record
        column.kinds.add(_kind(value))
        text = isinstance(value, str) and bool(value.strip())
        column.longest = max(column.longest, _characters(value))
        if not text and column.first_row_not_text is None:
            column.first_row_not_text = number
        if not (text or is_conversation(value)) and column.first_row_not_chat is None:
            column.first_row_not_chat = number


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else "object"


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if is_conversation(value):
        return max(len(message["content"]) for message in value)
    return 0


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages that ends with one for the model to answer."""
    if not isinstance(value, list) or not value:
        return False
    messages = all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
        for item in value
    )
    return messages and value[-1]["role"] != "assistant"


def _column_view(name: str, column: _Column) -> ColumnView:
    return ColumnView(
        name=name,
        kinds=sorted(column.kinds),
        rows=column.rows,
        longest_characters=column.longest,
        first_row_not_text=column.first_row_not_text,
        first_row_not_chat=column.first_row_not_chat,
    )


# --- readers ------------------------------------------------------------------------------------------------------


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            place = f"line {number}"
            if len(line) > MAX_ROW_BYTES:
                yield Row(place, fault=f"longer than {MAX_ROW_BYTES} bytes")
                return
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield Row(place, strict_json.loads(text))
            except RecursionError:
                yield Row(place, fault="nested too deeply")
            except UnicodeDecodeError:
                yield Row(place, fault="not UTF-8")
            except json.JSONDecodeError as error:
                yield Row(place, fault=f"not JSON: {error.msg} at column {error.colno}")
            except ValueError as error:
                yield Row(place, fault=f"not JSON: {error}")


class _Lines:
    """Lines of a CSV file, bounded: a quote that is never closed would swallow the rest of the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8-sig", newline="")
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


def _csv(path: Path) -> Iterator[Row]:
    """The rows below the header. All values are text; an empty cell is empty text."""
    lines = _Lines(path)
    reader = csv.reader(lines, strict=True)
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
            yield Row(place, dict(zip(header, cells, strict=True)))
        elif cells:
            yield Row(place, fault=f"has {len(cells)} cells where the header has {len(header)}")


def _parquet(path: Path) -> Iterator[Row]:
    """The rows as `parquet_program` writes them, in a process of its own that sees none of our environment."""
    command = [sys.executable, "-I", parquet_program.__file__, str(path)]
    number = 0
    with subprocess.Popen(command, env={}, stdin=_NOTHING, stdout=subprocess.PIPE, stderr=_NOTHING) as process:
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
        return Row(place, fault=f"longer than {MAX_ROW_BYTES} bytes")
    return Row(place, **json.loads(line))


_READERS: dict[DatasetFormat, Callable[[Path], Iterator[Row]]] = {
    DatasetFormat.JSONL: _json_lines,
    DatasetFormat.CSV: _csv,
    DatasetFormat.PARQUET: _parquet,
}
