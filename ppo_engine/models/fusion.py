"""Modules that compute a function in many passes over memory, made to compute it in one.

An activation or norm is changed only where torch's own kernel gives the same on random numbers; weights and names stay
as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

_TOLERANCE = 1e-6

Rows = Callable[[Tensor, Tensor], None]
"""Takes the gradient of some rows of a table: their numbers [n], each once, and the rows [n, H] in fp32."""


class _FusedGELU(NewGELUActivation):
    """GPT-2's approximation of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415), in one kernel instead of eight."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        return F.gelu(input, approximate="tanh")


class _RowEmbedding(nn.Embedding):
    """An embedding whose gradient touches only the rows that were looked up.

    torch makes a gradient as large as the table, and adds that to the gradient of the head that shares the table: three
    passes over a hundred megabytes for a few hundred tokens. On a CPU only, where rows are added in a fixed order.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[...] token ids -> [..., H]."""
        weight = self.weight
        if not (torch.is_grad_enabled() and weight.requires_grad and weight.device.type == "cpu"):
            return super().forward(input)
        found = F.embedding(input, weight.detach()).requires_grad_()
        found.register_hook(partial(_hand_on, weight, input, self.padding_idx))
        return found


def _hand_on(weight: Tensor, ids: Tensor, padding_idx: int | None, gradient: Tensor) -> None:
    """Sum the gradients of the tokens [..., H] by row, and give them to whoever collects those of the table."""
    flat, rows = ids.flatten(), gradient.detach().flatten(0, -2)
    if padding_idx is not None:
        kept = flat != padding_idx
        flat, rows = flat[kept], rows[kept]
    numbers, places = flat.unique(return_inverse=True)
    total = torch.zeros((len(numbers), rows.shape[1]), device=rows.device).index_add_(0, places, rows.float())
    getattr(weight, _TAKER, partial(add_rows, weight))(numbers, total)


_TAKER = "takes_rows"


def take_rows(parameter: nn.Parameter, taker: Rows) -> None:
    """Have the gradients of a table's rows given to `taker`, and not added to the parameter's own."""
    setattr(parameter, _TAKER, taker)


def add_rows(parameter: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add the gradient of some rows to a parameter's."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.index_add_(0, ids, rows.to(parameter.dtype))


def fuse(model: nn.Module) -> None:
    """Make the activations, RMS norms and embeddings of a model faster, in place."""
    for module in model.modules():
        if type(module) is NewGELUActivation:
            _change(module, _FusedGELU, 64)
        elif type(module) is nn.Embedding and _is_plain_table(module):
            module.__class__ = _RowEmbedding
        elif _is_rms_norm(module):
            _change(module, _fused_norm(type(module)), len(module.weight))  # type: ignore[arg-type]


def _is_plain_table(module: nn.Embedding) -> bool:
    return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


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
