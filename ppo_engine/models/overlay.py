"""The same network with other weights: reference, and moving average, of a policy in training.

Only the tensors that are trained can differ, so only they are held twice: all of them in full fine-tuning, those of the
top layers, or the adapters of LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from ppo_engine.batch import Sequences
from ppo_engine.maths.logprobs import Distribution, Head
from ppo_engine.models.policy import LanguageModel


class Reference(Protocol):
    """What KL is measured against. `models.LanguageModel` is one."""

    @property
    def head(self) -> Head:
        """Hidden states [n, H] -> logits [n, V]."""
        ...

    def __call__(self, sequences: Sequences, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T] of the response tokens, and the hidden states [B, T, H]."""
        ...


def trained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes, by name; a tensor with several names has its first."""
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


class Overlay:
    """Values that take the place of a module's own for the length of a `with`.

    They have no gradient, so no backward pass ever sees them.
    """

    def __init__(self, module: nn.Module, values: Mapping[str, Tensor]) -> None:
        """Hold `values` for the parameters of these names; they are not copied.

        Raises:
            KeyError: no such parameter.
        """
        self.values = {name: tensor.detach() for name, tensor in values.items()}
        every = {name: places for name, _, places in places_of(module)}
        self._places = {name: every[name] for name in self.values}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module computes with these values, in the precision of those whose place they take."""
        own = {name: owner._parameters[key] for name, [(owner, key), *_] in self._places.items()}
        self._put({name: _like(value, own[name]) for name, value in self.values.items()})
        try:
            yield
        finally:
            self._put(own)

    def _put(self, values: Mapping[str, Tensor | None]) -> None:
        for name, places in self._places.items():
            for owner, key in places:
                owner._parameters[key] = values[name]  # type: ignore[assignment]

    @torch.no_grad()
    def replace(self, values: Mapping[str, Tensor]) -> None:
        """Take over a copy of other values of the same tensors."""
        self.values = {name: values[name].detach().to(old, copy=True) for name, old in self.values.items()}

    @torch.no_grad()
    def follow(self, values: Mapping[str, Tensor], decay: float) -> None:
        """One step of an exponential moving average: own <- decay * own + (1 - decay) * values."""
        for name, own in self.values.items():
            own.mul_(decay).add_(values[name], alpha=1.0 - decay)

    def to(self, wanted: torch.device | torch.dtype) -> Self:
        """Move the values, or hold them in another precision."""
        self.values = {name: tensor.to(wanted) for name, tensor in self.values.items()}
        return self


Place = tuple[nn.Module, str]
"""A module and the name of one of its parameters."""


def places_of(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, list[Place]]]:
    """Every parameter of a module: its first name, itself, and all places where it is (several if it is tied)."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, parameter in module.named_parameters():
        yield name, parameter, [_place(module, alias) for alias in names[id(parameter)]]


def _place(module: nn.Module, name: str) -> Place:
    path, _, key = name.rpartition(".")
    return module.get_submodule(path), key


def _like(value: Tensor, own: Tensor | None) -> Tensor:
    return value if own is None else value.to(own.dtype)


class OverlaidReference:
    """The policy with the weights it had before, as a reference."""

    def __init__(self, language: LanguageModel, overlay: Overlay, *, was_reset: bool = False) -> None:
        self.language, self.overlay = language, overlay
        self.was_reset = was_reset
        """Its weights are no longer those from before training."""

    def __call__(self, sequences: Sequences, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T] of the response tokens, and the hidden states [B, T, H]."""
        with self.overlay.applied():
            outputs: tuple[Tensor, Tensor] = self.language(sequences, distribution)
        return outputs

    def head(self, hidden: Tensor) -> Tensor:
        """Hidden states [n, H] -> logits [n, V]."""
        with self.overlay.applied():
            return self.language.head(hidden)

    def reset(self, values: Mapping[str, Tensor]) -> None:
        """Measure KL against these weights from now on."""
        self.overlay.replace(values)
        self.was_reset = True
