"""Modules of transformers that compute a function in many passes over memory, made to compute it in one.

A module is changed only where torch's own kernel gives the same on random numbers; weights and names stay as they are.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

_TOLERANCE = 1e-6


class _FusedGELU(NewGELUActivation):
    """GPT-2's approximation of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415), in one kernel instead of eight."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        return F.gelu(input, approximate="tanh")


def fuse(model: nn.Module) -> None:
    """Make the activations and RMS norms of a model faster, in place."""
    for module in model.modules():
        if type(module) is NewGELUActivation:
            _change(module, _FusedGELU, 64)
        elif _is_rms_norm(module):
            _change(module, _fused_norm(type(module)), len(module.weight))  # type: ignore[arg-type]


def _is_rms_norm(module: nn.Module) -> bool:
    """Whether it looks like Llama's; others of that name may add 1 to the weight, which `_change` notices."""
    kind = type(module)
    named = kind.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon") and not hasattr(kind, "is_fused")
    return named and [name for name, _ in module.named_parameters()] == ["weight"]


@cache
def _fused_norm(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        weight: Tensor = self.weight  # type: ignore[assignment]
        eps: float = self.variance_epsilon  # type: ignore[assignment]
        return F.rms_norm(hidden_states, weight.shape, weight, eps)

    return type(kind.__name__, (kind,), {"forward": forward, "is_fused": True})


@torch.no_grad()
def _change(module: nn.Module, fused: type[nn.Module], width: int) -> None:
    """Give a module another class, unless that computes something else."""
    plain = type(module)
    generator = torch.Generator().manual_seed(0)
    weight = next(module.parameters(), torch.empty(()))
    probe = torch.randn((4, width), generator=generator).to(weight)
    expected = module(probe)
    module.__class__ = fused
    if not torch.allclose(module(probe), expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        module.__class__ = plain
