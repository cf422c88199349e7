"""Policy, value head and reference: loading, and the forward passes the engine needs.

Legend: B sequences, P prompt tokens, T response tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ppo_engine.batch import Sequences
from ppo_engine.config import ModelSource, ValueHeadInit
from ppo_engine.errors import ModelUnavailable
from ppo_engine.logprobs import Distribution, token_logprobs
from ppo_engine.sources import SourceError, resolve

VALUE_HEAD_STD = 0.2
"""Spread of a `normal` value head (TRL `v_head_initializer_range`)."""


class TokenOutputs(NamedTuple):
    """Per response token, 0 where not trained on: log-probability, entropy (nats), value. All [B, T]."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


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
        if model.get_output_embeddings() is None or model.base_model is model:
            raise ModelUnavailable(f"{type(model).__name__} has no separate language-model head")
        self.head = LanguageHead(model)
        self._takes_positions = "position_ids" in inspect.signature(model.base_model.forward).parameters
        self._check_head()

    def trunk(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        """Last hidden states [B, L, H]; positions are counted over real tokens, so padding shifts nothing."""
        if self._takes_positions:
            positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
            options["position_ids"] = positions[:, -input_ids.shape[1] :]
        hidden: Tensor = self.model.base_model(
            input_ids=input_ids, attention_mask=attention_mask.long(), return_dict=True, **options
        )[0]
        return hidden

    def response_hidden(self, sequences: Sequences) -> Tensor:
        """Hidden states [B, T, H] of the states in which each response token was chosen."""
        ids = torch.cat([sequences.prompt_ids, sequences.response_ids[:, :-1]], dim=1)
        mask = torch.cat([sequences.prompt_mask, sequences.response_present[:, :-1]], dim=1)
        return self.trunk(ids, mask, use_cache=False)[:, sequences.prompt_ids.shape[1] - 1 :]

    def forward(self, sequences: Sequences, distribution: Distribution) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T] of the response tokens, and the hidden states [B, T, H]."""
        hidden = self.response_hidden(sequences)
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


class Policy(nn.Module):
    """The language model and a linear value head, in fp32, on the same trunk."""

    def __init__(self, language: LanguageModel, init: ValueHeadInit) -> None:
        super().__init__()
        self.language = language
        self.value_head = nn.Linear(language.head.hidden_size, 1, dtype=torch.float32)
        std = 0.0 if init is ValueHeadInit.ZERO else VALUE_HEAD_STD
        nn.init.normal_(self.value_head.weight, std=std)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, sequences: Sequences, distribution: Distribution, *, entropy_grad: bool = False) -> TokenOutputs:
        """Log-probability, entropy and value at every response token."""
        hidden = self.language.response_hidden(sequences)
        logprobs, entropy = _scatter_logprobs(
            hidden, sequences, self.language.head, distribution, entropy_grad=entropy_grad
        )
        return TokenOutputs(logprobs, entropy, self._values(hidden, sequences.response_mask))

    def _values(self, hidden: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            values = self.value_head(hidden.float()).squeeze(-1)
        return torch.where(mask, values, torch.zeros_like(values))


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


def response_positions(mask: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the 0-based place of every column in its response."""
    return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)


def load_language_model(source: ModelSource, roots: Sequence[Path]) -> LanguageModel:
    """Load a causal language model in fp32 from a folder under `roots` or from the hub.

    Raises:
        ModelUnavailable: not found, not a causal model, weights missing or not in safetensors.
    """
    where, options = _locate(source, roots)
    model, report = _load(
        lambda: AutoModelForCausalLM.from_pretrained(
            where,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        ),
        where,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{where}: weights are missing, for example `{missing[0]}` ({len(missing)} in all)")
    return LanguageModel(model.eval())


def load_tokenizer(source: ModelSource, roots: Sequence[Path]) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model.

    Raises:
        ModelUnavailable: not found.
    """
    where, options = _locate(source, roots)
    tokenizer: PreTrainedTokenizerBase = _load(
        lambda: AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options), where
    )
    return tokenizer


def _locate(source: ModelSource, roots: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    if source.hub is not None:
        return source.hub, {"revision": source.revision} if source.revision else {}
    try:
        folder = resolve(source.path or "", roots)
    except SourceError as error:
        raise ModelUnavailable(str(error)) from error
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{source.path} has no config.json")
    return str(folder), {"local_files_only": True}


def _load(load: Callable[[], Any], where: str) -> Any:
    try:
        return load()
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnavailable(f"{where} cannot be loaded: {reason}") from error
