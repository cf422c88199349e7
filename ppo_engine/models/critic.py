"""A critic with a trunk of its own: from the policy, a causal model, a reward model, or a checkpoint of ours."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from ppo_engine.config import ModelSource, SeparateValue
from ppo_engine.errors import InvalidConfig, ModelUnavailable
from ppo_engine.models.loading import load_checked, locate
from ppo_engine.models.policy import LanguageModel, new_value_head
from ppo_engine.models.trunk import Trunk

HEAD = "value_head.safetensors"
"""Beside the trunk in the `critic` folder of a checkpoint."""


class Critic(NamedTuple):
    """The parts of a critic."""

    trunk: PreTrainedModel
    head: nn.Linear


def make_critic(config: SeparateValue, language: LanguageModel, roots: Sequence[Path]) -> Critic:
    """A new critic; `language` is the policy before training, and is copied unless the spec names a source.

    Raises:
        ModelUnavailable: the source cannot be found or loaded.
        InvalidConfig: it is no critic for this policy.
    """
    if config.source is None:
        trunk: Any = copy.deepcopy(language.trunk.model)
        return Critic(trunk.requires_grad_(True), new_value_head(language.head.hidden_size, config.init))
    name = config.source.path or config.source.hub
    where, options = locate(config.source, roots)
    kinds = load_checked(lambda: AutoConfig.from_pretrained(where, **options), where).architectures or []
    if any(kind.endswith("ForSequenceClassification") for kind in kinds):
        trunk, head = _reward_model(config.source, roots)
    else:
        trunk, head = _trunk(config.source, roots), None
        if (Path(where) / HEAD).is_file():
            head = _stored_head(Path(where))
    embeddings: Any = trunk.get_input_embeddings()
    theirs, ours = embeddings.weight.shape[0], language.head.vocabulary
    if theirs != ours:
        raise InvalidConfig(f"model.value.separate: `{name}` has a vocabulary of {theirs}, the policy one of {ours}")
    width = _check_causal(trunk, str(name))
    return Critic(trunk, head or new_value_head(width, config.init))


def save_critic(critic: PreTrainedModel, head: nn.Linear, folder: Path) -> None:
    """Write a folder that `load_critic` reads, and that a spec can name as a source."""
    critic.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in head.state_dict().items()}, folder / HEAD)


def load_critic(folder: Path) -> Critic:
    """Read what `save_critic` wrote."""
    return Critic(_trunk(ModelSource(path=str(folder)), [folder]), _stored_head(folder))


def _trunk(source: ModelSource, roots: Sequence[Path]) -> PreTrainedModel:
    return _loaded(AutoModel, source, roots)


def _reward_model(source: ModelSource, roots: Sequence[Path]) -> tuple[PreTrainedModel, nn.Linear]:
    """Trunk and score head of a sequence classifier with one label."""
    model = _loaded(AutoModelForSequenceClassification, source, roots)
    name, score = source.path or source.hub, getattr(model, "score", None)
    if model.config.num_labels != 1 or not isinstance(score, nn.Linear):
        raise InvalidConfig(f"model.value.separate: `{name}` is no reward model with one score from one linear layer")
    head = nn.Linear(score.in_features, 1, dtype=torch.float32)
    with torch.no_grad():
        head.weight.copy_(score.weight)
        nn.init.zeros_(head.bias)
        if score.bias is not None:
            head.bias.copy_(score.bias)
    trunk: Any = model.base_model
    return trunk, head


def _loaded(kind: Any, source: ModelSource, roots: Sequence[Path]) -> PreTrainedModel:
    where, options = locate(source, roots)
    fixed = {"dtype": torch.float32, "use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
    model, report = load_checked(lambda: kind.from_pretrained(where, **fixed, **options), where)
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{where}: weights are missing, for example `{missing[0]}` ({len(missing)} in all)")
    found: PreTrainedModel = model.eval()
    return found


def _stored_head(folder: Path) -> nn.Linear:
    try:
        stored = load_file(folder / HEAD)
        head = nn.Linear(stored["weight"].shape[1], 1, dtype=torch.float32)
        head.load_state_dict(stored)
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelUnavailable(f"{folder.name}/{HEAD} cannot be read: {error}") from error
    return head


@torch.no_grad()
def _check_causal(trunk: PreTrainedModel, name: str) -> int:
    """Refuse a trunk that reads tokens after the one it judges; returns the width of its hidden states."""
    first, other = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 1, 2, 4]])
    run, mask = Trunk(trunk), torch.ones_like(first)
    a, b = run(first, mask, use_cache=False), run(other, mask, use_cache=False)
    if not torch.allclose(a[:, :3], b[:, :3], rtol=1e-4, atol=1e-4):
        raise InvalidConfig(f"model.value.separate: `{name}` reads the tokens after the one it would judge")
    return int(a.shape[2])
