"""Feeds a recorded TRL case through the trainer. TRL's option names are translated here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from ppo_engine.batch import make_sequences
from ppo_engine.config import TrainConfig, ValueHeadInit
from ppo_engine.models import LanguageModel, Policy
from ppo_engine.trainer import Models, Trainer

DATA = Path(__file__).parent / "data" / "steps"
PAD_ID = 60
PPO_FIELDS = {
    "batch_size": "batch_size",
    "mini_batch_size": "minibatch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "ppo_epochs": "ppo_epochs",
    "gamma": "gamma",
    "lam": "gae_lambda",
    "cliprange": "clip_range",
    "cliprange_value": "value_clip_range",
    "vf_coef": "vf_coef",
    "score_clip": "score_clip",
    "whiten_rewards": "whiten_rewards",
    "ratio_threshold": "ratio_threshold",
}


@cache
def cases() -> list[dict[str, Any]]:
    return json.loads((DATA / "cases.json").read_text())["cases"]


class NoTokenizer:
    """The recorded cases are token ids; nothing is decoded."""

    eos_token_id = None


def train_config(case: dict[str, Any], **ppo: Any) -> TrainConfig:
    options = case["cfg"] | case["overrides"]
    fields = {ours: options[theirs] for theirs, ours in PPO_FIELDS.items() if theirs in options}
    if options.get("early_stopping"):
        fields["target_kl"] = options["target_kl"]
    adaptive = {k: options[k] for k in ("target", "horizon") if k in options}
    controller = {"adaptive": adaptive} if options.get("adap_kl_ctrl", True) else {"fixed": {}}
    return TrainConfig.model_validate(
        {
            "model": {"policy": {"path": "unused"}},
            "prompts": {"inline": ["unused"]},
            "rewards": [{"name": "unused", "rule": {"name": "sentiment"}}],
            "ppo": {"steps": 2, **fields, **ppo},
            "kl": {
                "penalty": options.get("kl_penalty", "kl"),
                "init_kl_coef": options.get("init_kl_coef", 0.2),
                **controller,
            },
            "optimizer": {"learning_rate": options["learning_rate"]},
        }
    )


def load(base: str, role: str) -> tuple[LanguageModel, dict[str, torch.Tensor]]:
    config = AutoConfig.from_pretrained(DATA / f"{base}_config")
    model = AutoModelForCausalLM.from_config(config)
    weights = load_file(DATA / f"{base}_{role}.safetensors")
    head = {k.removeprefix("v_head.summary."): weights.pop(k) for k in list(weights) if k.startswith("v_head")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing
    assert not unexpected
    return LanguageModel(model.eval()), head


def make_trainer(case: dict[str, Any], **ppo: Any) -> Trainer:
    torch.set_num_threads(1)
    language, head = load(case["base"], "policy")
    policy = Policy(language, ValueHeadInit.ZERO)
    policy.value_head.load_state_dict(head)
    reference, _ = load(case["base"], "ref")
    models = Models(policy=policy, reference=reference, tokenizer=NoTokenizer())  # type: ignore[arg-type]
    accelerator = Accelerator(cpu=True)
    return Trainer(train_config(case, **ppo), accelerator, models, prompts=None, scorer=None)  # type: ignore[arg-type]


def recorded_order(permutations: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    yield from permutations


def replay_step(trainer: Trainer, step: dict[str, Any]) -> dict[str, float]:
    """One recorded step; returns our scalars."""
    sequences = make_sequences(step["queries"], step["responses"], pad_id=PAD_ID, response_masks=step["response_masks"])
    order = recorded_order(step["permutations"])
    update = trainer.update(sequences, step["scores"], permutations=lambda _: next(order))
    return trainer.scalars(update)
