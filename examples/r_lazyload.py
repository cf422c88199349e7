"""Reads character vectors out of an R package's lazy-load data base (`Rdata.rdx` and `Rdata.rdb`), without R.

Both files hold R's XDR serialisation, compressed: the `.rdx` file is a list that says where in the `.rdb` file each
variable lies. Format: "R Internals", section "Serialization Formats". Only what such data needs is read; anything
else is a ValueError.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

# R's type numbers (SEXPTYPE), and the pseudo-types of the serialisation.
SYMBOL, PAIRLIST, CHARACTER, LOGICAL, INTEGER, STRINGS, LIST = 1, 2, 9, 10, 13, 16, 19
NIL, REFERENCE = 254, 255
HAS_ATTRIBUTES, HAS_TAG = 0x200, 0x400


def read_variables(prefix: Path) -> dict[str, Any]:
    """Return every variable of the data base whose files are `prefix`.rdx and `prefix`.rdb."""
    index = _Reader(gzip.decompress(prefix.with_suffix(".rdx").read_bytes())).read()
    data = prefix.with_suffix(".rdb").read_bytes()
    return {name: _variable(data, *place) for name, place in index["variables"].items()}


def _variable(data: bytes, offset: int, size: int) -> Any:
    """A chunk: its unpacked size in 4 bytes, then a zlib stream."""
    return _Reader(zlib.decompress(data[offset + 4 : offset + size])).read()


class _Reader:
    """One pass over a serialised value."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._symbols: list[Any] = []

    def read(self) -> Any:
        if self._take(2) != b"X\n":
            raise ValueError("not R's XDR serialisation")
        version = self._integer()
        self._take(8)  # the R versions that wrote it and that can read it
        if version == 3:
            self._take(self._integer())  # name of the native encoding
        return self._item(self._integer())

    def _item(self, flags: int) -> Any:
        kind = flags & 0xFF
        if kind == NIL:
            return None
        if kind == REFERENCE:
            return self._symbols[(flags >> 8 or self._integer()) - 1]
        if kind == SYMBOL:
            self._symbols.append(self._item(self._integer()))
            return self._symbols[-1]
        if kind == PAIRLIST:
            return self._pairlist(flags)
        if kind == CHARACTER:
            size = self._integer()
            return None if size == -1 else self._take(size).decode()  # -1 is R's NA
        return self._vector(flags)

    def _pairlist(self, flags: int) -> dict[Any, Any]:
        """Cells until NIL; used here for attributes, whose tags are their names."""
        found = {}
        while flags & 0xFF == PAIRLIST:
            tag = self._item(self._integer()) if flags & HAS_TAG else None
            found[tag] = self._item(self._integer())
            flags = self._integer()
        return found

    def _vector(self, flags: int) -> Any:
        kind, count = flags & 0xFF, self._integer()
        if kind in (LOGICAL, INTEGER):
            values: list[Any] = [self._integer() for _ in range(count)]
        elif kind in (STRINGS, LIST):
            values = [self._item(self._integer()) for _ in range(count)]
        else:
            raise ValueError(f"R type {kind} is not supported")
        attributes = self._item(self._integer()) if flags & HAS_ATTRIBUTES else {}
        return dict(zip(attributes["names"], values, strict=True)) if "names" in attributes else values

    def _integer(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]
