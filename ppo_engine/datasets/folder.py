"""The prompts of a folder, read row by row, with all that is wrong in it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ppo_engine.config.data import MAX_FILE_BYTES, PromptFolder
from ppo_engine.datasets.faults import Fault, FolderUnusable, unknown, unusable
from ppo_engine.datasets.layout import DataFile
from ppo_engine.datasets.lines import Line, line_of, reason
from ppo_engine.datasets.rows import READERS, TEXT, Row
from ppo_engine.sources import SourceError, open_file

MAX_FAULTS = 20
"""Most bad rows that are named."""
_TEXT_FIELD = "text"
_POINTER = b"version https://git-lfs.github.com/spec/"


def read_folder(folder: PromptFolder, files: Sequence[DataFile], *, chat: bool) -> Iterator[Line]:
    """The prompts in `files`, in their order, up to `max_rows`.

    Raises:
        FolderUnusable: behind the last good row, with up to `MAX_FAULTS` bad ones; at once where no more can be read.
    """
    most = folder.max_rows
    if most is None and sum(file.stamp[1] for file in files) > MAX_FILE_BYTES:
        raise _too_large()
    faults: list[Fault] = []
    count = size = 0
    for name, row in _rows(files):
        size += row.size
        if size > MAX_FILE_BYTES:
            raise _too_large()
        field = _TEXT_FIELD if name.endswith(TEXT) else folder.field
        if count == 0 and isinstance(row.values, dict) and field not in row.values:
            raise unknown("field", "column", field, list(row.values))
        count += 1
        line = _line(row, field, chat=chat)
        if isinstance(line, Line):
            yield line
        else:
            faults.append(Fault("path", "row_unusable", f"`{name}` {row.place}: {line}"))
        if count == most or len(faults) == MAX_FAULTS:
            break
    if faults:
        raise FolderUnusable(faults)
    if count == 0:
        raise unusable(f"the split `{folder.split}` has no row")


def _line(row: Row, field: str, *, chat: bool) -> Line | str:
    """The prompt of a row, or what is wrong with it."""
    if row.fault:
        return row.fault
    try:
        return line_of(row.values, field, chat=chat)
    except ValueError as error:
        return reason(error)


def _too_large() -> FolderUnusable:
    advice = "set `max_rows` to take the first ones"
    return unusable(f"the rows of the split are larger than {MAX_FILE_BYTES} bytes: {advice}", code="too_large")


def _rows(files: Sequence[DataFile]) -> Iterator[tuple[str, Row]]:
    """Every row with the name of its file."""
    for file in files:
        try:
            opened = open_file(file.path)
        except SourceError as error:
            raise unusable(f"`{file.name}` cannot be read") from error
        try:
            yield from _rows_of(file, opened)
        except OSError as error:
            raise unusable(f"`{file.name}` cannot be read: {type(error).__name__}") from error


def _rows_of(file: DataFile, opened: BinaryIO) -> Iterator[tuple[str, Row]]:
    with opened:
        begin = os.pread(opened.fileno(), len(_POINTER), 0)  # leaves the place where a reader begins
        if begin == _POINTER:
            raise unusable(f"`{file.name}` is a pointer of Git LFS, without its content: run `git lfs pull`")
        if begin.lstrip().startswith(b"[") and file.ending == ".json":
            raise unusable(f"`{file.name}` is one JSON list; rows are read from JSON Lines, an object a line")
        for row in READERS[file.ending](opened):
            yield file.name, row
