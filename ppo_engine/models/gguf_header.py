"""The header of a GGUF file, measured against the file before anything is made of it.

`gguf` believes every count in a header: a file of 50 bytes that announces 2**40 numbers keeps it busy until the memory
is full. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

MAX_FIELDS, MAX_TENSORS, MAX_ITEMS = 10_000, 100_000, 4_000_000
"""Fields and tensors of a file, and members of all its lists: a vocabulary has a few hundred thousand."""
_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the values that have a fixed size, by their number in the format."""
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


def check_header(path: Path) -> None:
    """Refuse a header whose counts, sizes and places do not fit into the file.

    Raises:
        ValueError: the message says what is wrong.
    """
    with path.open("rb") as file:
        _Header(file).check()


class _Header:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._alignment = _DEFAULT_ALIGNMENT
        self._items = 0

    def check(self) -> None:
        if self._bytes(4) != b"GGUF" or self._number("<I") not in _VERSIONS:
            raise ValueError("not a GGUF file of version 2 or 3")
        tensors = self._count("tensors", MAX_TENSORS)
        for _ in range(self._count("fields", MAX_FIELDS)):
            self._field()
        spans = sorted(self._tensor() for _ in range(tensors))
        start = -(-self._file.tell() // self._alignment) * self._alignment
        before = 0
        for begin, end in spans:
            if begin < before:
                raise ValueError("two tensors overlap")
            if start + end > self._size:
                raise ValueError("a tensor is not inside the file")
            before = end

    def _field(self) -> None:
        name, kind = self._text(), self._number("<I")
        if name == b"general.alignment" and kind == 4:
            self._alignment = self._number("<I")
            if not 0 < self._alignment <= 1 << 16:
                raise ValueError("its alignment cannot be")
        elif kind == _ARRAY:
            self._list()
        else:
            self._value(kind)

    def _list(self) -> None:
        kind, count = self._number("<I"), self._count("members of a list", MAX_ITEMS - self._items)
        self._items += count
        if kind == _ARRAY:
            raise ValueError("a list of lists")
        if kind in _SIZES:
            self._skip(_SIZES[kind] * count)
        else:
            for _ in range(count):
                self._value(kind)

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip(self._number("<Q"))
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise ValueError(f"a value of the unknown kind {kind}")

    def _tensor(self) -> tuple[int, int]:
        """Where the data of a tensor begin and end, counted from the end of the header."""
        self._text()
        dimensions = self._number("<I")
        if dimensions > 4:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = [self._number("<Q") for _ in range(dimensions)]
        kind, begin = self._number("<I"), self._number("<Q")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return begin, begin + prod(shape) // block * size

    def _text(self) -> bytes:
        return self._bytes(self._number("<Q"))

    def _count(self, what: str, most: int) -> int:
        count = self._number("<Q")
        if count > most:
            raise ValueError(f"{count} {what}; {most} are the most")
        return count

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return value

    def _bytes(self, count: int) -> bytes:
        self._room_for(count)
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        self._room_for(count)
        self._file.seek(count, os.SEEK_CUR)

    def _room_for(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise ValueError("it ends within its header")
