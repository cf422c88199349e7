"""Published recipes as plain fragments of a spec: the user's values win over the preset's, those over the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppo_engine.config.algorithm import Preset


@dataclass(frozen=True, slots=True)
class Recipe:
    """A preset: what it is, where it comes from, and its values."""

    title: str
    source: str
    fragment: Mapping[str, Any]


PRESETS: dict[Preset, Recipe] = {
    Preset.TRL_CLASSIC: Recipe(
        title="TRL's classic trainer with all its defaults",
        source="trl 0.11.4, PPOConfig and AutoModelForCausalLMWithValueHead",
        fragment={
            "model": {"value": {"shared": {"init": "normal"}}},
            "ppo": {
                "batch_size": 128,
                "minibatch_size": 128,
                "ppo_epochs": 4,
                "gamma": 1.0,
                "gae_lambda": 0.95,
                "clip_range": 0.2,
                "value_clip_range": 0.2,
                "vf_coef": 0.1,
                "ratio_threshold": 10.0,
                "whiten_rewards": False,
                "score_scaling": "none",
            },
            "kl": {"penalty": "kl", "init_kl_coef": 0.2, "adaptive": {"target": 6.0, "horizon": 10000.0}},
            "optimizer": {"learning_rate": 1.41e-5, "eps": 1e-8},
        },
    ),
    Preset.PPO_MAX: Recipe(
        title="PPO-max: strong KL, normalised and clipped rewards, a critic of its own that is trained first",
        source="Zheng et al. 2023, arXiv:2307.04964, section 5.4; learning rates from its train_ppo_en.sh",
        fragment={
            "model": {"value": {"separate": {}}},
            "ppo": {
                "ppo_epochs": 1,
                "gamma": 1.0,
                "gae_lambda": 0.95,
                "clip_range": 0.2,
                "value_clip_range": 0.2,
                "vf_coef": 1.0,
                "score_scaling": "normalise",
                "score_clip": 0.8,
                "critic_warmup_steps": 10,
            },
            "kl": {"penalty": "kl", "init_kl_coef": 0.05, "fixed": {}},
            "optimizer": {"learning_rate": 5e-7, "value_learning_rate": 1.5e-6, "max_grad_norm": 1.0},
        },
    ),
    Preset.INSTRUCTGPT: Recipe(
        title="InstructGPT's PPO-ptx; give `ptx.texts`, and the reward model as `model.value.separate.source`",
        source="Ouyang et al. 2022, arXiv:2203.02155, appendix C.4",
        fragment={
            "model": {"value": {"separate": {}}, "ema_decay": 0.992},
            "ppo": {
                "batch_size": 512,
                "minibatch_size": 64,
                "ppo_epochs": 1,
                "gamma": 1.0,
                "gae_lambda": 0.95,
                "clip_range": 0.2,
                "value_clip_range": 0.2,
                "vf_coef": 1.0,
            },
            "kl": {"penalty": "kl", "init_kl_coef": 0.02, "fixed": {}},
            "ptx": {"coef": 27.8, "batch_size": 512},
            "optimizer": {"learning_rate": 9e-6, "betas": [0.9, 0.95], "warmup_steps": 10},
        },
    ),
    Preset.N_DETAILS: Recipe(
        title="The N implementation details of RLHF with PPO: OpenAI's 2019 settings",
        source="Huang et al. 2023 (reproduction of Ziegler et al. 2019, arXiv:1909.08593)",
        fragment={
            "generation": {"temperature": 0.7},
            "model": {"value": {"shared": {"init": "zero"}}},
            "ppo": {
                "batch_size": 512,
                "ppo_epochs": 4,
                "gamma": 1.0,
                "gae_lambda": 0.95,
                "clip_range": 0.2,
                "value_clip_range": 0.2,
                "vf_coef": 0.1,
                "whiten_rewards": True,
                "missing_eos_penalty": 1.0,
            },
            "kl": {"penalty": "kl", "init_kl_coef": 0.15, "adaptive": {"target": 6.0, "horizon": 10000.0}},
            "optimizer": {"learning_rate": 1e-5, "schedule": "linear", "eps": 1e-5},
        },
    ),
}


def expand_preset(document: Any) -> Any:
    """A spec document with its preset's values where it has none of its own; anything else is returned as it is."""
    ppo = _section(document, "ppo")
    name = ppo.get("preset")
    if not isinstance(name, str) or name not in set(Preset):
        return document  # none, or not one: validation says which there are
    fragment = _without_overruled(PRESETS[Preset(name)].fragment, document)
    minibatch = fragment["ppo"].get("minibatch_size")
    if minibatch is not None and "batch_size" in ppo and not _fits(minibatch, ppo["batch_size"]):
        fragment["ppo"] = {key: part for key, part in fragment["ppo"].items() if key != "minibatch_size"}
    return _merged(fragment, document)


def _fits(minibatch: int, batch: Any) -> bool:
    """Whether a batch holds the preset's minibatch; a batch that is not even a number has a problem of its own."""
    return isinstance(batch, int | float) and minibatch <= batch


def _without_overruled(fragment: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fragment without alternatives that the document chose otherwise."""
    kept, value, kl = dict(fragment), _section(document, "model", "value"), _section(document, "kl")
    if value and set(value) != set(_section(kept, "model", "value")):
        kept["model"] = {key: part for key, part in kept["model"].items() if key != "value"}
    if {"adaptive", "fixed"} & set(kl):
        kept["kl"] = {key: part for key, part in kept["kl"].items() if key not in ("adaptive", "fixed")}
    return kept


def _section(document: Any, *path: str) -> Mapping[str, Any]:
    """The object at a path; empty where there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _merged(below: Any, above: Any) -> Any:
    """Two JSON values, the second over the first; objects are merged key by key."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
