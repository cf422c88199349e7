"""How near is equal, in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

GOLDEN = 1e-5
"""Against numbers recorded elsewhere, in fp32."""
MATH = 1e-6
"""Against an exact computation of the same few operations, in fp32."""


def golden(value: Any) -> Any:
    """Equal to a recorded number, list or dict of numbers."""
    return pytest.approx(value, rel=GOLDEN, abs=GOLDEN)


def assert_close(ours: Tensor, theirs: Any, tolerance: float = MATH) -> None:
    """Equal tensors within a tolerance; NaN equals NaN."""
    wanted = torch.as_tensor(theirs, dtype=ours.dtype)
    torch.testing.assert_close(ours, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
