"""Feeds recorded queries, responses, scores, masks and permutations through the optimiser, and says what came out.

For debugging, and to prove that a change of the code changed no number. A case is one JSON object:

    cfg, overrides           TRL 0.11.4's option names (`ppo_engine.trl`); overrides win
    policy, reference        {"config": FOLDER, "weights": FILE}, relative to the case; the policy's weights include
                             `v_head.summary.weight` and `.bias`
    pad_token_id
    steps                    queries and responses (token ids), scores, response_masks or null, and permutations:
                             one per epoch
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ppo_engine import runtime
from ppo_engine.batch import make_sequences
from ppo_engine.config import TrainConfig, ValueHeadInit
from ppo_engine.errors import InvalidConfig, ModelUnavailable
from ppo_engine.models.networks import Models
from ppo_engine.models.policy import LanguageModel, Policy
from ppo_engine.trainer import Trainer
from ppo_engine.trl import spec_fields

HEAD_PREFIX = "v_head.summary."

_UNUSED: dict[str, Any] = {
    "model": {"policy": {"path": "unused"}},
    "prompts": {"inline": ["unused"]},
    "rewards": [{"name": "unused", "rule": {"name": "sentiment"}}],
    "resources": {"device": "cpu", "precision": "fp32"},
}
"""A replay draws no prompt and scores nothing; the recorded numbers are fp32 ones."""


class TokenIds:
    """Stands where the tokenizer is: a case is token ids, and nothing is decoded."""

    eos_token_id = None


def replay(path: Path) -> Iterator[dict[str, Any]]:
    """Run a case; yields one JSON object per recorded step.

    Raises:
        InvalidConfig: the case is not one.
        ModelUnavailable: its models cannot be loaded.
    """
    case = _read(path)
    trainer = load_trainer(case, path.parent)
    for step in case["steps"]:
        yield {
            "stats": replay_step(trainer, step, pad_id=int(case["pad_token_id"])),
            "kl_coef_after": trainer.kl.value,
            "v_head_weight": trainer.models.policy.value_head.weight.flatten().tolist(),
            "v_head_bias": float(trainer.models.policy.value_head.bias.item()),
        }


def load_trainer(case: Mapping[str, Any], folder: Path, **ppo: Any) -> Trainer:
    """A trainer on the case's models, on the CPU in fp32; `ppo` overrides fields of `PPOConfig`."""
    config = train_config(case, **ppo)
    accelerator: Accelerator = runtime.start(config.resources, threads=1)
    language, head = _load_model(case["policy"], folder)
    policy = Policy(language, ValueHeadInit.ZERO).eval()
    policy.value_head.load_state_dict(head)
    reference, _ = _load_model(case["reference"], folder)
    models = Models(policy=policy, reference=reference.requires_grad_(False), tokenizer=TokenIds())  # type: ignore[arg-type]
    return Trainer(config, accelerator, models, prompts=None, scorer=None)  # type: ignore[arg-type]


def train_config(case: Mapping[str, Any], **ppo: Any) -> TrainConfig:
    """The case's options as our configuration; raises InvalidConfig."""
    try:
        spec = spec_fields(case["cfg"] | case["overrides"])
        steps = {"steps": len(case["steps"])}
        return TrainConfig.model_validate({**_UNUSED, **spec, "ppo": steps | spec.get("ppo", {}) | ppo})
    except ValueError as error:
        raise InvalidConfig(str(error)) from error


def replay_step(trainer: Trainer, step: Mapping[str, Any], *, pad_id: int) -> dict[str, float]:
    """One recorded step; returns our scalars."""
    sequences = make_sequences(
        step["queries"], step["responses"], pad_id=pad_id, response_masks=step.get("response_masks")
    )
    order = iter(step["permutations"])
    return trainer.scalars(trainer.update(sequences, step["scores"], permutations=lambda _: next(order)))


def _read(path: Path) -> dict[str, Any]:
    try:
        case: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from error
    missing = [key for key in ("cfg", "overrides", "policy", "reference", "pad_token_id", "steps") if key not in case]
    if missing:
        raise InvalidConfig(f"{path} is not a case: it has no {', '.join(missing)}")
    return case


def _load_model(source: Mapping[str, str], folder: Path) -> tuple[LanguageModel, dict[str, Tensor]]:
    """The language model, and the value head's tensors if there are any."""
    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / source["config"]))
        weights = load_file(folder / source["weights"])
        head = {key.removeprefix(HEAD_PREFIX): weights.pop(key) for key in list(weights) if key.startswith(HEAD_PREFIX)}
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelUnavailable(f"{source}: {error}") from error
    if missing or unexpected:
        raise ModelUnavailable(f"{source['weights']}: does not fit its config: {[*missing, *unexpected][:3]}")
    return LanguageModel(model.eval()), head
