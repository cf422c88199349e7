"""The precision that the passes compute in. Trained weights stay in fp32 (the masters); bf16 passes use copies of them.

Casting once per optimizer step instead of in every layer of every pass is what makes this faster than autocast, and
frozen weights are held in bf16 alone. Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.1.

A gradient stays in bf16 until a second one is to be added to it or the optimizer wants it, a bucket of parameters at a
time: so the fp32 gradients of a whole model, written and read again from far memory, never exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ppo_engine.models.fusion import add_rows, take_rows
from ppo_engine.models.overlay import places_of

_BUCKET_VALUES = 4 * 2**20
"""Parameters whose gradients are in fp32 at the same time: 16 MiB."""


class ComputeWeights:
    """What modules compute with. In fp32 that is their own weights, and nothing here does anything."""

    def __init__(self, modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
        """Make the copies, and turn frozen weights into `dtype` for good."""
        self.dtype = dtype
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        """Of every trained master."""
        self._places: list[list[tuple[nn.Module, str]]] = []
        self._waiting: dict[nn.Parameter, Tensor] = {}
        """The first gradient of a master, as it came."""
        self._room = torch.empty(0)
        """Where the fp32 gradients of one bucket lie after the other: fresh memory costs more than the arithmetic."""
        if dtype is not torch.float32:
            for module in modules:
                self._take(module)

    def _take(self, module: nn.Module) -> None:
        for _, master, places in places_of(module):
            if not master.requires_grad:
                master.data = master.data.to(self.dtype)
                continue
            copy = nn.Parameter(master.detach().to(self.dtype))
            copy.register_post_accumulate_grad_hook(self._collector(master))
            take_rows(copy, partial(self._collect_rows, master))
            self._copies[master] = copy
            self._places.append(places)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The modules compute with the copies; gradients are the masters'."""
        self._put(self._copies.values())
        try:
            yield
        finally:
            self._put(self._copies.keys())

    def _put(self, parameters: Iterable[nn.Parameter]) -> None:
        for places, parameter in zip(self._places, parameters, strict=True):
            for owner, name in places:
                owner._parameters[name] = parameter

    def gradient(self, master: nn.Parameter) -> Tensor | None:
        """What was collected for a parameter, in whatever precision it is in."""
        return self._waiting.get(master, master.grad)

    def settle(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put the gradients of these parameters where an optimizer looks for them, in their own precision."""
        for master in parameters:
            if (waiting := self._waiting.pop(master, None)) is not None:
                master.grad = waiting.to(master.dtype)

    def buckets(self) -> Iterator[list[nn.Parameter]]:
        """The parameters whose gradients are not settled, a few at a time, and settled until the next are asked for."""
        bucket: list[nn.Parameter] = []
        for master in list(self._waiting):
            if bucket and sum(p.numel() for p in bucket) + master.numel() > _BUCKET_VALUES:
                yield self._lend(bucket)
                bucket = []
            bucket.append(master)
        if bucket:
            yield self._lend(bucket)

    def _lend(self, bucket: list[nn.Parameter]) -> list[nn.Parameter]:
        """Settle in a place that the next bucket takes again."""
        sizes = [master.numel() for master in bucket]
        if sum(sizes) > len(self._room):
            self._room = torch.empty(sum(sizes), device=bucket[0].device)
        for master, part in zip(bucket, self._room[: sum(sizes)].split(sizes), strict=True):
            master.grad = part.view_as(master).copy_(self._waiting.pop(master))
        return bucket

    def forget(self) -> None:
        """Drop gradients that are not settled."""
        self._waiting.clear()

    @torch.no_grad()
    def refresh(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Copy the masters, or these of them, after they have changed."""
        for master in self._copies if parameters is None else parameters:
            if (copy := self._copies.get(master)) is not None:
                copy.copy_(master)

    def _collector(self, master: nn.Parameter) -> Callable[[Tensor], None]:
        """Takes each gradient of a copy; sums over microbatches are made in fp32."""

        def collect(copy: Tensor) -> None:
            gradient, copy.grad = copy.grad, None
            if gradient is None:
                return
            if master.grad is None and master not in self._waiting:
                self._waiting[master] = gradient
            else:
                self.settle([master])
                master.grad = gradient.to(master.dtype) if master.grad is None else master.grad.add_(gradient)

        return collect

    def _collect_rows(self, master: nn.Parameter, ids: Tensor, rows: Tensor) -> None:
        """Takes the gradient of a few rows of a copy. Onto one that waits, it is added in the precision of that."""
        if (waiting := self._waiting.get(master)) is not None:
            waiting.index_add_(0, ids, rows.to(waiting.dtype))
        else:
            add_rows(master, ids, rows)
