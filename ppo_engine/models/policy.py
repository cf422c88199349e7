"""Policy and critic: the forward passes the engine needs.

Legend: B sequences, P prompt tokens, T response tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppo_engine.batch import Sequences
from ppo_engine.config import ValueHeadInit
from ppo_engine.errors import ModelUnavailable
from ppo_engine.maths.logprobs import Distribution, Head, full_kl, token_logprobs
from ppo_engine.models.trunk import Trunk

VALUE_HEAD_STD = 0.2
"""Spread of a `normal` value head (TRL `v_head_initializer_range`)."""


class TokenOutputs(NamedTuple):
    """Per response token, 0 where not trained on: log-probability, entropy (nats), value. All [B, T]."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    kl: Tensor | None = None
    """KL over the whole vocabulary, nats, where it was asked for."""


class OtherDistribution(NamedTuple):
    """What another model, with the same vocabulary, would say: its hidden states [B, T, H], and its head."""

    hidden: Tensor
    head: Head


class LanguageHead:
    """The map from the trunk's last hidden state to logits: [n, H] -> [n, V]."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self._linear: nn.Module = model.get_output_embeddings()
        self._softcap = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and 3
        self._factor = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
        self._factor /= float(getattr(config, "logits_scaling", None) or 1.0)  # Granite
        self.vocabulary = int(self._linear.weight.shape[0])
        self.hidden_size = int(self._linear.weight.shape[1])

    def __call__(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._linear(hidden)
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits


class LanguageModel(nn.Module):
    """A causal language model split into trunk and head, so that logits are made only where they are needed."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        require_head(model)
        self.head = LanguageHead(model)
        self.trunk = Trunk(model.base_model)
        self._check_head()

    def forward(self, sequences: Sequences, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T] of the response tokens, and the hidden states [B, T, H]."""
        hidden = self.trunk.response_hidden(sequences)
        logprobs, _ = _scatter_logprobs(hidden, sequences, self.head, distribution, entropy_grad=False)
        return logprobs, hidden

    @torch.no_grad()
    def _check_head(self) -> None:
        """Refuse an architecture whose logits our head would not reproduce."""
        ids = torch.arange(4, device=self.model.device).unsqueeze(0) % self.head.vocabulary
        mask = torch.ones_like(ids)
        self.model.eval()
        theirs = self.model(input_ids=ids, attention_mask=mask).logits.float()
        ours = self.head(self.trunk(ids, mask, use_cache=False)).float()
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            raise ModelUnavailable(f"{type(self.model).__name__} changes its logits in a way this engine does not know")


def require_head(model: PreTrainedModel) -> None:
    """Raise ModelUnavailable where a model cannot be split into trunk and head."""
    if model.get_output_embeddings() is None or model.base_model is model:
        raise ModelUnavailable(f"{type(model).__name__} has no separate language-model head")


class Policy(nn.Module):
    """The language model and its critic: a linear value head, in fp32, on the same trunk or on one of its own."""

    def __init__(
        self,
        language: LanguageModel,
        init: ValueHeadInit,
        critic: PreTrainedModel | None = None,
        head: nn.Linear | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            language: the policy proper.
            init: how the value head starts, unless `head` is given.
            critic: a trunk for the value head alone; without one it sits on the policy's.
            head: the value head, [H] -> [1].
        """
        super().__init__()
        self.language = language
        self.value_head = head or new_value_head(language.head.hidden_size, init)
        self.critic = critic
        self._own_trunk = None if critic is None else Trunk(critic)

    def forward(
        self,
        sequences: Sequences,
        distribution: Distribution,
        *,
        entropy_grad: bool = False,
        value_only: bool = False,
        against: OtherDistribution | None = None,
    ) -> TokenOutputs:
        """Log-probability, entropy and value at every response token, and the full KL `against` another model.

        With `value_only` the first two are 0 and not computed, and a shared trunk gets no gradient.
        """
        if value_only:
            values = self._values(self._value_hidden(sequences), sequences.response_mask)
            return TokenOutputs(torch.zeros_like(values), torch.zeros_like(values), values)
        hidden = self.language.trunk.response_hidden(sequences)
        logprobs, entropy = _scatter_logprobs(
            hidden, sequences, self.language.head, distribution, entropy_grad=entropy_grad
        )
        kl = None if against is None else _scatter_kl(hidden, sequences, self.language.head, against, distribution)
        value_hidden = hidden if self.critic is None else self._value_hidden(sequences)
        return TokenOutputs(logprobs, entropy, self._values(value_hidden, sequences.response_mask), kl)

    def _value_hidden(self, sequences: Sequences) -> Tensor:
        if self._own_trunk is not None:
            return self._own_trunk.response_hidden(sequences)
        with torch.no_grad():
            return self.language.trunk.response_hidden(sequences)

    def checkpoint_critic(self) -> None:
        """Compute the activations of a critic's own trunk again in the backward pass."""
        if self._own_trunk is not None:
            self._own_trunk.checkpoint_layers(True)

    def value_parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the critic that the policy does not share."""
        modules = [self.value_head] if self.critic is None else [self.value_head, self.critic]
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def policy_parameters(self) -> list[nn.Parameter]:
        """The trainable parameters of the language model, a trunk shared with the critic included."""
        return [p for p in self.language.parameters() if p.requires_grad]

    def _values(self, hidden: Tensor, mask: Tensor) -> Tensor:
        values = self.value_head(hidden.float()).squeeze(-1)
        return torch.where(mask, values, torch.zeros_like(values))


def new_value_head(hidden_size: int, init: ValueHeadInit) -> nn.Linear:
    """A value head [H] -> [1] in fp32, bias 0."""
    head = nn.Linear(hidden_size, 1, dtype=torch.float32)
    nn.init.normal_(head.weight, std=0.0 if init is ValueHeadInit.ZERO else VALUE_HEAD_STD)
    nn.init.zeros_(head.bias)
    return head


def _scatter_logprobs(
    hidden: Tensor, sequences: Sequences, head: LanguageHead, distribution: Distribution, *, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Run the head on the trained-on tokens only; the rest of [B, T] is 0."""
    mask = sequences.response_mask
    positions = response_positions(mask)[mask]
    logprobs, entropy = token_logprobs(
        hidden[mask], sequences.response_ids[mask], positions, head, distribution, entropy_grad=entropy_grad
    )
    empty = torch.zeros(mask.shape, dtype=logprobs.dtype, device=mask.device)
    return empty.masked_scatter(mask, logprobs), empty.masked_scatter(mask, entropy)


def _scatter_kl(
    hidden: Tensor, sequences: Sequences, head: LanguageHead, against: OtherDistribution, distribution: Distribution
) -> Tensor:
    """As `_scatter_logprobs`, for the KL over the whole vocabulary."""
    mask = sequences.response_mask
    positions = response_positions(mask)[mask]
    kl = full_kl(hidden[mask], against.hidden[mask], positions, head, against.head, distribution)
    return torch.zeros(mask.shape, dtype=kl.dtype, device=mask.device).masked_scatter(mask, kl)


def response_positions(mask: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the 0-based place of every column in its response."""
    return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
