"""Frozen weights in bf16, where autocast would round them at every use: half the memory, and the same numbers."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ppo_engine.overlay import Overlay


def rounded_by_autocast(model: nn.Module) -> set[str]:
    """Names of the parameters that only linear layers use: embeddings and norms compute with all of their bits."""
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    linear = {
        id(p)
        for module in model.modules()
        if type(module) in (nn.Linear, Conv1D)
        for p in module.parameters(recurse=False)
    }
    return {name for name, p in model.named_parameters() if id(p) in linear and uses[id(p)] == 1}


def halve_frozen(model: nn.Module) -> None:
    """Hold the frozen linear layers of a model in bf16."""
    names = rounded_by_autocast(model)
    for name, parameter in model.named_parameters():
        if name in names and not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def halve_overlay(overlay: Overlay, model: nn.Module) -> None:
    """Hold an overlay's values for the linear layers of `model` in bf16."""
    names = rounded_by_autocast(model)

    def half(name: str, tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16) if name in names else tensor

    overlay.values = {name: half(name, tensor) for name, tensor in overlay.values.items()}
