"""Collecting experience: prompts -> responses -> scores, then logprobs, values and rewards of every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ppo_engine.batch import Sequences, pad
from ppo_engine.config import GenerationConfig
from ppo_engine.generation import sample
from ppo_engine.logprobs import Distribution
from ppo_engine.models import LanguageModel
from ppo_engine.prompts import Prompt
from ppo_engine.rewards import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Sampled and scored responses of one step, in order of the prompts."""

    prompts: list[str]
    responses: list[str]
    sequences: Sequences
    sampler_logprobs: Tensor
    """[B, T]"""
    finished: list[bool]
    """Whether each response ended with an end-of-text token."""
    scores: Scores


@dataclass(frozen=True, slots=True)
class Responder:
    """Samples responses of a policy to prompts."""

    language: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    config: GenerationConfig
    distribution: Distribution
    generator: torch.Generator

    def respond(self, prompts: Sequence[Prompt]) -> tuple[Sequences, Tensor, list[bool]]:
        """Sequences on the policy's device, the sampler's logprobs [B, T], and which responses ended by themselves."""
        pad_id = pad_token_id(self.tokenizer)
        device = self.generator.device
        prompt_ids, prompt_mask = (t.to(device) for t in pad([p.ids for p in prompts], pad_id, left=True))
        drawn = sample(
            self.language,
            prompt_ids,
            prompt_mask,
            self.distribution,
            max_new_tokens=self.config.max_new_tokens,
            pad_id=pad_id,
            generator=self.generator,
        )
        sequences = Sequences(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            response_ids=drawn.ids,
            response_present=drawn.mask,
            response_mask=drawn.mask,
        )
        last = drawn.ids.gather(1, drawn.mask.sum(dim=1, keepdim=True) - 1).squeeze(1)
        finished = [token in self.distribution.eos_ids for token in last.tolist()]
        return sequences, drawn.logprobs, finished

    def texts(self, sequences: Sequences) -> list[str]:
        """The responses as text, without special tokens."""
        return [
            str(self.tokenizer.decode(ids[mask], skip_special_tokens=True))
            for ids, mask in zip(sequences.response_ids, sequences.response_present, strict=True)
        ]


def end_token_ids(language: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """All tokens that end a response: those of the model's generation config, and the tokenizer's."""
    configured = getattr(language.model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None}))


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Any valid id will do: masks, not ids, say what is padding."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(i) for i in candidates if isinstance(i, int))
