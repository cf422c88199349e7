"""llama.cpp's GGUF files as plain Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import torch


def convert(gguf: Path, folder: Path, dtype: torch.dtype) -> None:
    raise NotImplementedError
