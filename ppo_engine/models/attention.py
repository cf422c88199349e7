"""Which attention kernel a pass over whole sequences takes, where transformers' default is not the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

SHORT_TOKENS = 256
"""Up to this length plain matrix products beat the CPU flash kernel in bf16 (three times as fast
at 64 and 130 tokens, half as fast at 512): its backward pass is slow."""


@contextmanager
def fast_attention(model: nn.Module, input_ids: Tensor) -> Iterator[None]:
    """Attention of a transformer over sequences [B, L], chosen by their length, device and precision.

    Passes with and without gradients over the same sequences take the same kernel, so that they round alike.
    """
    whole: Any = model.config
    config = whole.get_text_config()
    default = config._attn_implementation
    dtype = next(model.parameters()).dtype
    plain = input_ids.device.type == "cpu" and dtype is torch.bfloat16 and input_ids.shape[1] <= SHORT_TOKENS
    if not plain or default != "sdpa":
        yield
        return
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = default
