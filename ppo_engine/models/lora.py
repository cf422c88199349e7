"""Low-rank adapters: those that are trained (Hu et al. 2021, arXiv:2106.09685), and those a policy starts with.

Adapters are PEFT's, in memory and on disk: a folder of ours is one that `PeftModel.from_pretrained` reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ppo_engine.config import LoRAConfig, ModelSource
from ppo_engine.errors import InvalidConfig, ModelUnavailable
from ppo_engine.models.loading import ADAPTER_WEIGHTS, locate_adapter
from ppo_engine.models.overlay import trained_tensors

_NAME = "default"  # PEFT's name for the only adapter of a model
_PREFIX = "base_model.model."  # before every name in an adapter's file


class _OnePassLinear(lora.Linear):
    """PEFT's layer, without its two passes over the output that scale the adapter's part and add it.

    Only for what `Adapters` makes: one adapter, no dropout, no variant.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        base: nn.Module = self.base_layer
        out: Tensor = base(x)
        down, up = self.lora_A[_NAME], self.lora_B[_NAME]
        low = torch.nn.functional.linear(x, down.weight) * self.scaling[_NAME]  # type: ignore[arg-type]
        return torch.addmm(out.flatten(0, -2), low.flatten(0, -2), up.weight.t()).view_as(out)  # type: ignore[operator]


class Adapters:
    """The adapters of a model that is trained through them: its own weights are frozen."""

    def __init__(self, model: PreTrainedModel, config: LoRAConfig, base: ModelSource) -> None:
        """Put new adapters into `model`; the first update is 0, so the model computes what it did.

        Raises:
            InvalidConfig: `target_modules` names something that is not there, or takes no adapter.
        """
        self.model = model
        self._config = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type] # it only divides
            target_modules=config.target_modules or "all-linear",
            lora_dropout=0.0,
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
            base_model_name_or_path=base.path or base.hub,
            revision=base.revision,
        )
        _check_targets(model, config)
        try:
            peft.inject_adapter_in_model(self._config, model, _NAME)
        except (ValueError, TypeError) as error:
            raise InvalidConfig(f"model.lora: {str(error).splitlines()[0]}") from error
        for module in model.modules():
            if type(module) is lora.Linear:
                module.__class__ = _OnePassLinear

    def before_training(self) -> dict[str, Tensor]:
        """Values of the adapters with which the model computes what it did without them."""
        return {name: torch.zeros_like(tensor) for name, tensor in trained_tensors(self.model).items()}

    def save(self, folder: Path) -> None:
        """Write a PEFT adapter: its config and its weights."""
        folder.mkdir()
        tensors = {_file_name(name): tensor.contiguous() for name, tensor in self._named().items()}
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._config.inference_mode = True  # what every reader but us wants it for
        if not isinstance(self._config.target_modules, str):
            self._config.target_modules = sorted(self._config.target_modules or [])
        self._config.save_pretrained(str(folder))

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The values in a folder that `save` wrote, by the names they have in the model."""
        stored = load_file(folder / ADAPTER_WEIGHTS)
        return {name: stored[_file_name(name)] for name in self._named()}

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote."""
        values = self.read(folder)
        for name, tensor in trained_tensors(self.model).items():
            tensor.copy_(values[name])

    def _named(self) -> dict[str, Tensor]:
        state = self.model.state_dict()  # not `parameters`: an overlay may lie over them
        return {name: state[name] for name in state if f".{_NAME}." in name}


def _file_name(name: str) -> str:
    return _PREFIX + name.replace(f".{_NAME}.", ".")


def _check_targets(model: PreTrainedModel, config: LoRAConfig) -> None:
    names = [name for name, _ in model.named_modules()]
    embeddings = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for target in config.target_modules or []:
        hits = [name for name in names if name == target or name.endswith(f".{target}")]
        if not hits:
            raise InvalidConfig(f"model.lora.target_modules: the policy has no module `{target}`")
        if any(id(model.get_submodule(name)) in embeddings for name in hits):
            raise InvalidConfig(
                f"model.lora.target_modules: embeddings and head take no adapter, and `{target}` is one"
            )


def merge(model: PreTrainedModel, source: ModelSource, roots: Sequence[Path]) -> None:
    """Add a finished adapter to the weights of `model`, as if it had been trained without one.

    Raises:
        ModelUnavailable: not found, or not in safetensors.
        InvalidConfig: the adapter is for another model, or of a kind that cannot be merged.
    """
    folder = locate_adapter(source, roots)
    name = source.path or source.hub
    try:
        config = PeftConfig.from_pretrained(str(folder))
        values = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise ModelUnavailable(f"the adapter `{name}` cannot be read: {_first_line(error)}") from error
    if config.is_prompt_learning:
        raise InvalidConfig(f"model.adapter: `{name}` is of kind {config.peft_type}, which has no weights to merge")
    config.inference_mode = True
    try:
        adapted = _with_values(model, config, values)
        merged = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, AttributeError, TypeError, NotImplementedError) as error:
        raise InvalidConfig(f"model.adapter: `{name}` does not fit the policy: {_first_line(error)}") from error
    if merged is not model or any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise InvalidConfig(f"model.adapter: `{name}` cannot be merged into the policy")
    model.requires_grad_(True)


def _with_values(model: PreTrainedModel, config: PeftConfig, values: dict[str, Tensor]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads a name that transformers will drop
        adapted = PeftModel(model, config)
    wanted = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))  # it would ask the hub
    if wanted != set(values):
        odd = sorted(wanted ^ set(values))
        raise ValueError(f"{len(odd)} of its tensors do not match, for example {odd[0].removeprefix(_PREFIX)}")
    set_peft_model_state_dict(adapted, values)
    return adapted


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
