"""The precision that the passes compute in. Trained weights stay in fp32 (the masters); bf16 passes use copies of them.

Casting once per optimizer step instead of in every layer of every pass is what makes this faster than autocast, and
frozen weights are held in bf16 alone. Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ppo_engine.models.overlay import places_of


class ComputeWeights:
    """What modules compute with. In fp32 that is their own weights, and nothing here does anything."""

    def __init__(self, modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
        """Make the copies, and turn frozen weights into `dtype` for good."""
        self.dtype = dtype
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._places: list[list[tuple[nn.Module, str]]] = []
        if dtype is not torch.float32:
            for module in modules:
                self._take(module)

    def _take(self, module: nn.Module) -> None:
        for _, master, places in places_of(module):
            if not master.requires_grad:
                master.data = master.data.to(self.dtype)
                continue
            copy = nn.Parameter(master.detach().to(self.dtype))
            copy.register_post_accumulate_grad_hook(_collector(master))
            self._pairs.append((master, copy))
            self._places.append(places)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The modules compute with the copies; gradients arrive at the masters, in fp32."""
        self._put(copy for _, copy in self._pairs)
        try:
            yield
        finally:
            self._put(master for master, _ in self._pairs)

    def _put(self, parameters: Iterable[nn.Parameter]) -> None:
        for places, parameter in zip(self._places, parameters, strict=True):
            for owner, name in places:
                owner._parameters[name] = parameter

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters, after they have changed."""
        for master, copy in self._pairs:
            copy.copy_(master)


def _collector(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Adds each gradient of a copy to the master's, so that sums over microbatches are made in fp32."""

    def collect(copy: Tensor) -> None:
        if copy.grad is None:
            return
        if master.grad is None:
            master.grad = copy.grad.to(master.dtype)
        else:
            master.grad.add_(copy.grad)
        copy.grad = None

    return collect
