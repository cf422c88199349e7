"""The models of the examples: the committed one writes, and the scripts notice what is damaged."""

from __future__ import annotations

import gzip
import json
import math
import struct
import zlib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.fetch_smollm2 import DIGESTS, is_intact, sha256
from examples.r_lazyload import read_variables

AUSTEN = Path(__file__).parents[3] / "examples" / "models" / "austen-2m"


def test_the_austen_model_knows_english_and_how_to_end() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(AUSTEN), AutoTokenizer.from_pretrained(AUSTEN)
    text = "She was very glad to see him, and he was not at all sorry to be with her again."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
        last = model(ids).logits[0, -1].softmax(-1)
    assert loss * (ids.shape[1] - 1) / math.log(2) / len(text) < 2.2  # bits per byte; a uniform guess of bytes is 8
    assert last.argmax() == tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.decode(ids[0]) == text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {"config.json": "{}", "model.safetensors": "weights"}.items():
        (tmp_path / name).write_text(content)
    digests = {path.name: sha256(path) for path in tmp_path.iterdir()}
    (tmp_path / DIGESTS).write_text(json.dumps(digests))
    return tmp_path


def test_a_whole_folder_is_intact(folder: Path) -> None:
    assert is_intact(folder)


@pytest.mark.parametrize("name", ["model.safetensors", DIGESTS])
@pytest.mark.parametrize("content", ["weightz", None])
def test_a_damaged_folder_is_not(folder: Path, name: str, content: str | None) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    assert not is_intact(folder)


def integers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def characters(text: str | None) -> bytes:
    """An R CHARSXP; None is NA."""
    return integers(9, -1) if text is None else integers(9, len(text.encode())) + text.encode()


def strings(*texts: str | None) -> bytes:
    return integers(16, len(texts)) + b"".join(characters(text) for text in texts)


def named_list(names: list[str], items: list[bytes], *, names_symbol: bytes) -> bytes:
    """A VECSXP with the attribute `names`."""
    attributes = integers(2 | 0x400) + names_symbol + strings(*names) + integers(254)
    return integers(19 | 0x200, len(items)) + b"".join(items) + attributes


def test_character_vectors_are_read_out_of_r_files(tmp_path: Path) -> None:
    header = b"X\n" + integers(3, 0x40000, 0x30500, 5) + b"UTF-8"
    variables = {"emma": ["Emma", None, "é"], "persuasion": []}
    chunks = [zlib.compress(header + strings(*texts)) for texts in variables.values()]
    places, data = [], b""
    for chunk in chunks:
        places.append(integers(13, 2, len(data), len(chunk) + 4))
        data += integers(0) + chunk
    symbol, again = integers(1) + characters("names"), integers(255 | 1 << 8)
    inner = named_list(list(variables), places, names_symbol=symbol)
    index = named_list(["variables", "compressed"], [inner, integers(10, 1, 1)], names_symbol=again)
    (tmp_path / "Rdata.rdx").write_bytes(gzip.compress(header + index))
    (tmp_path / "Rdata.rdb").write_bytes(data)
    assert read_variables(tmp_path / "Rdata") == variables


def test_other_r_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Rdata.rdb").write_bytes(b"")
    for content, reason in [(b"A\n", "XDR"), (b"X\n" + integers(2, 0, 0, 14, 1) + b"\0" * 8, "R type 14")]:
        (tmp_path / "Rdata.rdx").write_bytes(gzip.compress(content))
        with pytest.raises(ValueError, match=reason):
            read_variables(tmp_path / "Rdata")
