"""The processes of a data-parallel run, called ranks. All hold the same weights, batch and random states.

They share the work on rows: sampling, scoring, and passes forward and backward. What the ranks found is put together
again at once, so all that follows (advantages, whitening, statistics, controllers, decisions) is the same arithmetic on
the same numbers in each of them, and the same as in a run of one process. Sums of weighted losses have global
denominators, so gradients are added, never averaged.

Tensors are put together as sums in which every rank leaves the others' rows at 0: exact, and nothing is ragged (TRL
all-reduced ragged tensors element by element, section 7.17 of its defects).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET_VALUES = 16 * 2**20
"""Gradients are added in buckets of about so many fp32 values (64 MiB): few messages, little extra memory."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the `count` of its run; every method must be called by all of them in the same order."""

    rank: int = 0
    count: int = 1
    device: torch.device | None = None
    """Where tensors must be to be exchanged."""

    @classmethod
    def current(cls, device: torch.device) -> Ranks:
        """The ranks of torch's process group; this process alone where there is none."""
        if not dist.is_initialized():
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def main(self) -> bool:
        """Whether this is the one that writes files and tells what happens."""
        return self.rank == 0

    def share(self, count: int) -> Share:
        """This rank's part of `count` rows. Of fewer rows than ranks each rank does all: no part is ever empty."""
        if count < self.count:
            return Share(ALONE, count)
        return Share(self, count)

    def split(self, rows: Tensor) -> Tensor:
        """This rank's part of rows whose results are added up; it may be empty."""
        return rows[self.rank :: self.count]

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks; the tensor may be overwritten."""
        if self.count == 1:
            return tensor
        if tensor.dtype is torch.bool:
            return self.sum(tensor.to(torch.uint8)).bool()
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor

    def exchange(self, value: Any) -> list[Any]:
        """What each rank gave, in order of the ranks: anything that JSON holds, floats exactly."""
        if self.count == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(own)
        dist.all_reduce(sizes)
        padded = own.new_zeros(int(sizes.max()))
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(found, padded)
        return [json.loads(row[:size].cpu().numpy().tobytes()) for row, size in zip(found, sizes.tolist(), strict=True)]

    def first(self, value: Any) -> Any:
        """What the main rank gave."""
        return self.exchange(value if self.main else None)[0]

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """Sum key by key; a rank need not have every key."""
        found: dict[str, float] = {}
        for part in self.exchange(sums):
            for key, value in part.items():
                found[key] = found.get(key, 0.0) + value
        return found

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.count > 1:
            self.exchange(None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The others enter when the main rank is done: for what only one of them must write."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up the gradients of all ranks. A parameter that no rank has a gradient of keeps none."""
        if self.count == 1:
            return
        known = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32, device=self.device)
        used = [p for p, ranks in zip(parameters, self.sum(known).tolist(), strict=True) if ranks]
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([p.grad for p in used if p.grad is not None]):
            total = self.sum(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, part in zip(bucket, total.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))


ALONE = Ranks()


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of `count` rows, every so many-th."""

    ranks: Ranks
    count: int

    @property
    def rows(self) -> list[int]:
        """Indexes of this rank's rows."""
        return list(range(self.count))[self.ranks.rank :: self.ranks.count]

    def index(self, device: torch.device) -> Tensor:
        """The same as a tensor."""
        return torch.tensor(self.rows, dtype=torch.int64, device=device)

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor [count, ...] of which every rank filled its rows and left the others 0; it may be overwritten."""
        return self.ranks.sum(tensor)

    def values(self, own: Sequence[Any]) -> list[Any]:
        """JSON values, one per row of this rank -> one per row of all."""
        found: list[Any] = [None] * self.count
        for rank, part in enumerate(self.ranks.exchange(list(own))):
            found[rank :: self.ranks.count] = part
        return found


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.numel() for t in bucket) + tensor.numel() > _BUCKET_VALUES:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
