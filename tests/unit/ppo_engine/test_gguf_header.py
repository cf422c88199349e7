"""GGUF headers that lie: refused by comparing them with the file, before memory is given for what they announce."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from ppo_engine.errors import ModelUnavailable
from ppo_engine.models.gguf import convert

U32, STRING, ARRAY, U64 = 4, 8, 9, 10


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*fields: bytes, count: int | None = None, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(fields) if count is None else count) + b"".join(fields)


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return text(b"x") + struct.pack("<IIQ", ARRAY, kind, count) + data


def tensor(name: bytes, shape: list[int], offset: int, kind: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def tensors(*described: bytes) -> bytes:
    return header(tensors=len(described)) + b"".join(described) + bytes(256)


LIES = {
    "a list of 2**40 numbers": (header(array(0, 1 << 40)), "members of a list"),
    "a list of 2**62 numbers": (header(array(U64, 1 << 62)), "members of a list"),
    "a list beyond the file": (header(array(U64, 1_000_000)), "ends within its header"),
    "many lists": (header(*[array(0, 3_000_000, bytes(3_000_000))] * 2), "members of a list; 1000000 are the most"),
    "texts beyond the file": (header(array(STRING, 1_000_000, text(b"a"))), "ends within its header"),
    "lists in lists": (header(array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 5000)), "a list of lists"),
    "2**60 fields": (header(count=1 << 60), "fields; 10000 are the most"),
    "2**60 tensors": (header(tensors=1 << 60), "tensors; 100000 are the most"),
    "a text of 2**62 bytes": (header(struct.pack("<Q", 1 << 62)), "ends within its header"),
    "an unknown kind": (header(text(b"x") + struct.pack("<I", 77)), "unknown kind 77"),
    "an alignment of 0": (header(text(b"general.alignment") + struct.pack("<II", U32, 0)), "alignment cannot be"),
    "a huge shape": (tensors(tensor(b"output.weight", [1 << 40, 1 << 40], 0)), "not inside the file"),
    "a shape that overflows": (tensors(tensor(b"output.weight", [1 << 63, 2], 0)), "not inside the file"),
    "an offset beyond the file": (tensors(tensor(b"output.weight", [4], 1 << 40)), "not inside the file"),
    "a negative offset": (tensors(tensor(b"output.weight", [4], (1 << 64) - 64)), "not inside the file"),
    "a tensor for the next one's data": (
        tensors(tensor(b"output.weight", [32], 0), tensor(b"output_norm.weight", [32], 64)),
        "two tensors overlap",
    ),
    "many tensors of the same data": (
        tensors(*[tensor(f"blk.{i}.attn_norm.weight".encode(), [8], 0) for i in range(1000)]),
        "two tensors overlap",
    ),
    "5 dimensions": (tensors(tensor(b"output.weight", [1] * 5, 0)), "5 dimensions"),
    "another version": (header(version=1 << 31), "version 2 or 3"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reason = LIES[lie]
    (tmp_path / "m.gguf").write_bytes(data)
    monkeypatch.setattr("ppo_engine.models.gguf.GGUFReader", None)  # it would believe the header
    with pytest.raises(ModelUnavailable, match=reason):
        convert(tmp_path / "m.gguf", tmp_path / "out", torch.float32)
