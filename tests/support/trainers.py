"""A trainer on a random model of a few thousand parameters, made in memory; it draws no prompt and scores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ppo_engine import runtime
from ppo_engine.config import TrainConfig, ValueHeadInit
from ppo_engine.models.networks import Models
from ppo_engine.models.policy import LanguageModel, Policy
from ppo_engine.program.replay import TokenIds
from ppo_engine.trainer import Trainer
from ppo_engine.update.ptx import TextSource

VOCABULARY, PAD = 23, 0
_BASE: dict[str, Any] = {
    "model": {"policy": {"path": "unused"}},
    "prompts": {"inline": ["unused"]},
    "rewards": [{"name": "unused", "rule": {"name": "sentiment"}}],
}


class Letters:
    """A tokenizer of one token per letter, a = 1 and so on; 22 ends a text."""

    eos_token_id = VOCABULARY - 1

    def __call__(self, text: str, **_options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") + 1 for letter in text]}


def random_model(seed: int) -> LanguageModel:
    """Wide enough weights that two seeds differ visibly."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
    )
    return LanguageModel(LlamaForCausalLM(config).eval())


def make_trainer(*, texts: Sequence[str] = (), **sections: dict[str, Any]) -> Trainer:
    """A trainer under the given sections of a spec; `texts` are those of the ptx loss."""
    spec = _BASE | sections | {"ppo": {"steps": 4, "batch_size": 4} | sections.get("ppo", {})}
    spec = {"resources": {"device": "cpu", "precision": "fp32"}} | spec
    policy = Policy(random_model(1), ValueHeadInit.NORMAL).eval()
    reference = random_model(2).requires_grad_(False)
    config = TrainConfig.model_validate(spec)
    accelerator = runtime.start(config.resources, threads=1)
    source = TextSource(texts, Letters(), max_tokens=12, shuffle=True, seed=config.seed) if texts else None
    models = Models(policy=policy, reference=reference, tokenizer=TokenIds())  # type: ignore[arg-type]
    return Trainer(config, accelerator, models, prompts=None, scorer=None, texts=source)  # type: ignore[arg-type]


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of every weight."""
    return {name: p.detach().clone() for name, p in trainer.models.policy.named_parameters()}
