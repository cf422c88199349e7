"""Models without their weights: torch's meta device gives every shape of an architecture and holds no number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from ppo_engine.config import ModelSource, TrainConfig
from ppo_engine.errors import InvalidConfig, ModelUnavailable
from ppo_engine.models.gguf import describe
from ppo_engine.models.layers import layer_list
from ppo_engine.models.loading import load_checked, load_tokenizer, locate, locate_adapter
from ppo_engine.models.policy import require_head
from ppo_engine.program.probe.memory import Shape
from ppo_engine.sources import SourceError, resolve

_MAX_HEADER_BYTES = 100 * 2**20
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}


@dataclass(frozen=True, slots=True)
class Outline:
    """A model's architecture on the meta device, its tokenizer, and what its weights take on disk."""

    model: PreTrainedModel
    tokenizer: Any
    file_bytes: int | None


def policy_outline(config: TrainConfig, roots: Sequence[Path]) -> Outline:
    """The policy before training.

    Raises:
        ModelUnavailable: config, tokenizer or the headers of its weights cannot be read, or do not fit each other.
    """
    source = config.model.policy
    settings, tokenizer, file_bytes = _described(source, roots)
    model = _meta(AutoModelForCausalLM, settings, str(source.path or source.hub))
    require_head(model)
    if config.model.adapter is not None:
        locate_adapter(config.model.adapter, roots)
    if source.path is not None and not source.path.endswith(".gguf"):
        _check_complete(Path(locate(source, roots)[0]), model, source.path)
    return Outline(model, tokenizer, file_bytes)


def other_outline(source: ModelSource, roots: Sequence[Path], kind: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """Another model of a run; raises ModelUnavailable."""
    settings, _, _ = _described(source, roots, tokenizer=False)
    return _meta(kind, settings, str(source.path or source.hub))


def critic_outline(source: ModelSource, roots: Sequence[Path]) -> Any:
    """The trunk of a critic of its own; raises ModelUnavailable."""
    settings, _, _ = _described(source, roots, tokenizer=False)
    classifies = any(kind.endswith("ForSequenceClassification") for kind in settings.architectures or [])
    model = _meta(
        AutoModelForSequenceClassification if classifies else AutoModel, settings, str(source.path or source.hub)
    )
    trunk: Any = model.base_model
    return trunk


def _described(source: ModelSource, roots: Sequence[Path], *, tokenizer: bool = True) -> tuple[Any, Any, int | None]:
    """Config, tokenizer and file size of a source."""
    if source.path is not None and source.path.endswith(".gguf"):
        try:
            file = resolve(source.path, roots)
        except SourceError as error:
            raise ModelUnavailable(str(error)) from error
        settings, own_tokenizer = describe(file)
        return settings, own_tokenizer, file.stat().st_size
    where, options = locate(source, roots)
    settings = load_checked(lambda: AutoConfig.from_pretrained(where, trust_remote_code=False, **options), where)
    found = load_tokenizer(source, roots) if tokenizer else None
    files = [] if source.path is None else list(Path(where).glob("*.safetensors"))
    return settings, found, sum(file.stat().st_size for file in files) if files else None


def _meta(kind: Any, settings: Any, name: str) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = load_checked(
            lambda: kind.from_config(settings, dtype=torch.float32, trust_remote_code=False), name
        )
    model.tie_weights()
    return model


# --- the headers of its weights -----------------------------------------------------------------------------------


def _check_complete(folder: Path, model: PreTrainedModel, name: str) -> None:
    """Whether the files hold as many numbers as the model has parameters.

    Names are not compared: transformers translates those of older files.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelUnavailable(f"{name} has no safetensors weights")
    stored, wanted = sum(_count(file) for file in files), sum(p.numel() for p in model.parameters())
    if stored < wanted:
        raise ModelUnavailable(f"{name}: weights are missing: the files hold {stored:,} numbers of {wanted:,}")


def _count(file: Path) -> int:
    """Numbers in a safetensors file, by its header: eight bytes of length, then JSON."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= _MAX_HEADER_BYTES:
                raise ValueError("its header has an impossible length")
            header = json.loads(stream.read(length))
        tensors = [value for key, value in header.items() if key != "__metadata__"]
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
        if file.stat().st_size < 8 + length + end:
            raise ValueError("it is cut off")
        return sum(_numbers(tensor) for tensor in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailable(f"{file.name} is no safetensors file: {error}") from error


def _numbers(tensor: Any) -> int:
    start, end = tensor["data_offsets"]
    return int((end - start) * 8 // _BITS.get(tensor["dtype"], 8))


# --- shapes -------------------------------------------------------------------------------------------------------


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens the model can read, where it says."""
    limit = getattr(_text_config(model), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def train_only(model: PreTrainedModel, config: TrainConfig) -> None:
    """Mark what the optimizer moves, as a run does: adapters, the last layers, or everything.

    Raises:
        InvalidConfig: adapters that fit nowhere, or more layers than there are.
    """
    if config.model.lora is not None:
        from ppo_engine.models.lora import Adapters  # noqa: PLC0415 - PEFT takes a second to import

        Adapters(model, config.model.lora, config.model.policy)
    elif config.model.trainable_layers is not None:
        _train_top(model, config.model.trainable_layers)


def _train_top(model: PreTrainedModel, wanted: int) -> None:
    layers = layer_list(model.base_model)
    if wanted > len(layers):
        raise InvalidConfig(f"model.trainable_layers is {wanted}, and the policy has {len(layers)} layers")
    inside = {id(p) for layer in layers for p in layer.parameters()}
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    moving = {id(p) for layer in layers[len(layers) - wanted :] for p in layer.parameters()}
    for parameter in model.parameters():
        lower = id(parameter) in inside and id(parameter) not in moving
        parameter.requires_grad_(not lower and id(parameter) not in tables)


def shape_of(model: PreTrainedModel, trained_layers: int | None = None) -> Shape:
    """A network in numbers; all of it is trained but what `requires_grad` leaves out."""
    config = _text_config(model)
    layers = max(1, int(config.num_hidden_layers))
    linears = [_sizes(module) for module in _linears(model)]
    heads = int(getattr(config, "num_attention_heads", 1))
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    embeddings: Any = model.get_input_embeddings()
    return Shape(
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(trained),
        largest=max(trained, default=0),
        layers=layers,
        trained_layers=layers if trained_layers is None else trained_layers,
        hidden_size=int(config.hidden_size),
        heads=heads,
        key_value_width=int(head_width * (getattr(config, "num_key_value_heads", None) or heads)),
        linear_width=sum(sum(sizes) for sizes in linears) // layers,
        widest=max((sizes[1] for sizes in linears), default=int(config.hidden_size)),
        vocabulary=int(embeddings.weight.shape[0]),
    )


def _linears(model: PreTrainedModel) -> Iterator[nn.Module]:
    head = model.get_output_embeddings()
    return (m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head)


def _sizes(module: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer; transformers' Conv1D holds its weight the other way round."""
    weight: Any = module.weight
    rows, columns = weight.shape
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)


def _text_config(model: PreTrainedModel) -> Any:
    config: Callable[[], Any] = model.config.get_text_config
    return config()
