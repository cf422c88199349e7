"""Training only the last layers of a policy and what comes after them: the final norm, and a head that is not tied."""

from __future__ import annotations

import torch

from ppo_engine.batch import make_sequences
from ppo_engine.errors import InvalidConfig
from ppo_engine.models.policy import LanguageModel


def freeze_lower_layers(language: LanguageModel, trained: int) -> None:
    """Train the last `trained` layers and what comes after them, and nothing else.

    Raises:
        InvalidConfig: there are not so many layers, or the architecture cannot be split there.
    """
    layers, model = language.trunk.layers, language.model
    if trained > len(layers.layers):
        raise InvalidConfig(f"model.trainable_layers is {trained}, and the policy has {len(layers.layers)} layers")
    layers.first = len(layers.layers) - trained
    head = model.get_output_embeddings()
    moving = [*layers.layers[layers.first :], *layers.after, head]
    owners = {id(module) for part in moving for module in part.modules()}
    fixed = {
        id(parameter)
        for module in model.modules()
        if id(module) not in owners
        for parameter in module.parameters(recurse=False)
    }
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) not in fixed)
    if layers.first > 0:
        _check_split(language)


@torch.no_grad()
def _check_split(language: LanguageModel) -> None:
    """Refuse an architecture whose layers hand on more than their hidden states."""
    prompts, responses = [[0, 1], [1]], [[0], [1, 0, 1]]
    sequences = make_sequences(prompts, responses, pad_id=0).to(language.model.device)
    whole = language.trunk.response_hidden(sequences)
    everything = torch.arange(len(sequences), device=sequences.prompt_ids.device)
    split = language.trunk.response_hidden(language.trunk.share(sequences, [everything]))
    present = sequences.response_present
    if not torch.allclose(whole[present], split[present], rtol=1e-4, atol=1e-4):
        name = type(language.model).__name__
        raise InvalidConfig(
            f"model.trainable_layers: {name} cannot be split between its layers", suggestion="Use lora."
        )
