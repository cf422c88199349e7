"""The decoder layers of a trunk: which of them are trained, and what is kept of the others.

Legend: B sequences, L tokens that are read, H hidden size. Works on any architecture whose decoder is a `ModuleList` of
layers that hand only their hidden states on to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache

from ppo_engine.errors import InvalidConfig

Run = Callable[[], Tensor]
"""One forward pass of the trunk."""

_HIDDEN = "hidden_states"


class DecoderLayers:
    """Takes over the forward passes of a trunk's decoder layers."""

    def __init__(self, model: nn.Module, probe: Run) -> None:
        """Find the layers of `model` by watching one forward pass, `probe`.

        Raises:
            InvalidConfig: the decoder is not a list of layers that run one after the other.
        """
        self.layers = layer_list(model)
        self.first = 0
        """The first layer that is trained; those before it are frozen."""
        self.checkpointing = False
        """Compute the activations inside a layer again in the backward pass, instead of keeping them."""
        self.after, self._forms = _watch(model, self.layers, probe)
        self._given: Tensor | None = None
        self._taken: list[Tensor] | None = None
        for index, layer in enumerate(self.layers):
            layer.forward = partial(self._forward, index, layer.forward)

    def frozen(self, run: Run) -> Tensor:
        """What the first trained layer is given in a forward pass: [B, L, H], without a gradient."""
        self._taken = []
        try:
            with torch.no_grad():
                run()
            return self._taken[0]
        finally:
            self._taken = None

    @contextmanager
    def given(self, hidden: Tensor) -> Iterator[None]:
        """Forward passes begin at the first trained layer, with these hidden states [B, L, H]."""
        self._given = hidden
        try:
            yield
        finally:
            self._given = None

    def _forward(self, index: int, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A layer's forward pass; it may be skipped, given another input, or checkpointed."""
        hidden = args[0] if args else options[_HIDDEN]
        if self._taken is not None and index >= self.first:
            self._taken.append(hidden)
            return self._unchanged(index, hidden)
        if self._given is not None and index < self.first:
            return self._unchanged(index, hidden)
        if self._given is not None and index == self.first:
            args, options = ((self._given, *args[1:]), options) if args else (args, options | {_HIDDEN: self._given})
        if self.checkpointing and torch.is_grad_enabled() and not _has_cache(args, options):
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **options)
        return forward(*args, **options)

    def _unchanged(self, index: int, hidden: Tensor) -> Any:
        """Hidden states in the form that the layer returns."""
        length = self._forms[index]
        return hidden if length is None else (hidden, *[None] * (length - 1))


def _has_cache(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return any(isinstance(value, Cache) for value in (*args, *options.values()))


def layer_list(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a trunk.

    Raises:
        InvalidConfig: they are not one list of the length that its config tells.
    """
    config: Any = model.config
    wanted = int(config.get_text_config().num_hidden_layers)
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == wanted and _alike(m)]
    if len(lists) != 1:
        raise InvalidConfig(f"{type(model).__name__} has no known list of {wanted} decoder layers")
    return list(lists[0])


def _alike(layers: nn.ModuleList) -> bool:
    """Layers hold several modules each; lists of single projections, one per layer, are something else."""
    return all(len(list(layer.children())) > 1 for layer in layers)


def _watch(model: nn.Module, layers: list[nn.Module], probe: Run) -> tuple[list[nn.Module], list[int | None]]:
    """Run `probe`; returns the modules that ran after the last layer, and the length of each layer's output tuple."""
    began: list[nn.Module] = []
    forms: dict[int, int | None] = {}

    def begin(module: nn.Module, _: Any) -> None:
        began.append(module)

    def end(module: nn.Module, _: Any, output: Any) -> None:
        forms[layers.index(module)] = None if isinstance(output, Tensor) else len(output)

    hooks = [module.register_forward_pre_hook(begin) for module in model.modules()]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    try:
        with torch.no_grad():
            probe()
    finally:
        for hook in hooks:
            hook.remove()
    if [module for module in began if module in layers] != layers:
        raise InvalidConfig(f"the decoder layers of {type(model).__name__} do not run one after the other")
    inside = set(layers[-1].modules())
    last = began.index(layers[-1])
    return [module for module in began[last:] if module not in inside], [forms[i] for i in range(len(layers))]
