"""Statistics over kept tokens: the one definition of "mean over response tokens".

Shapes: x and mask are [B, T]; mask is bool, True = keep. What stands in dropped places never matters, not even NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8
"""Added to the variance before the square root (TRL `masked_whiten`)."""


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """`x` with dropped places set to 0."""
    return torch.where(mask, x, torch.zeros_like(x))


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of the kept values, a scalar."""
    return keep(x, mask).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of the kept values, a scalar; 0/0 is NaN as in every mean of nothing."""
    return masked_sum(x, mask) / mask.sum()


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Variance of the kept values with Bessel's correction, a scalar; NaN below two values."""
    count = mask.sum()
    centred = x - masked_mean(x, mask)
    return masked_sum(centred * centred, mask) / (count - 1)


def whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale the kept values to variance 1, and to mean 0 unless `shift_mean` is off; dropped places become 0.

    Fewer than two values have no variance and come back unchanged.

    Source: lm-human-preferences `whiten`; TRL 0.11.4 `masked_whiten`. There the result was not masked again, so that
    whitened rewards leaked into padding.
    """
    if int(mask.sum()) < 2:
        return keep(x, mask)
    mean = masked_mean(x, mask)
    scaled = (x - mean) * torch.rsqrt(masked_var(x, mask) + WHITEN_EPSILON)
    return keep(scaled if shift_mean else scaled + mean, mask)
