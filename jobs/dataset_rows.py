"""Rows of an uploaded file, one at a time: JSON Lines, CSV and Parquet become checked JSON Lines and facts of columns.

Nothing is held but one row and what is known of each column, so a file may be larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from jobs.errors import InvalidDataset, Problem
from jobs.plain import plain, pointer
from jobs.views import ColumnView
from ppo_engine.datasets.rows import READERS, Row

MAX_COLUMNS = 256
MAX_NAME_CHARACTERS = 128
_MAX_PROBLEMS = 50


class DatasetFormat(StrEnum):
    """What an uploaded file is."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


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
    for count, row in enumerate(_rows(source, kind), start=1):
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


def _rows(source: Path, kind: DatasetFormat) -> Iterator[Row]:
    with source.open("rb") as file:
        yield from READERS[f".{kind}"](file)


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
