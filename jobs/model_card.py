"""The card of an exported model: what it is, how it was trained, what it scored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SHOWN = (
    "env/reward_mean",
    "env/reward_std",
    "eval/reward_mean",
    "objective/kl",
    "objective/entropy",
    "tokens/responses_len_mean",
)


def model_card(spec: Mapping[str, Any], *, job_id: str, step: int, scalars: Mapping[str, float], adapter: bool) -> str:
    """The card in Markdown, with the hub's front matter; the same text whenever it is made."""
    policy, lora = spec["model"]["policy"], spec["model"].get("lora")
    front = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "text-generation"}
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in front.items())]
    if policy.get("hub"):
        lines.append(f"base_model: {json.dumps(policy['hub'])}")
    lines += ["tags:", "- ppo", "- reinforcement-learning", "---", "", f"# {_plain(spec['name'])}", ""]
    base = policy.get("hub") or policy.get("path")
    what = "A fine-tuned" if lora is None else f"A LoRA adapter (rank {lora['rank']}), merged into"
    what = f"A LoRA adapter (rank {lora['rank']}) for" if lora and adapter else what
    lines += [f"{what} `{_plain(base)}`, trained with PPO: step {step} of {spec['ppo']['steps']}, job `{job_id}`.", ""]
    lines += _table("Numbers of this step", {key: f"{scalars[key]:.6g}" for key in _SHOWN if key in scalars})
    lines += _table("Rewards", {reward["name"]: _reward(reward) for reward in spec["rewards"]})
    lines += ["## Spec", "", "```json", json.dumps(_public(spec), indent=1, sort_keys=True), "```", ""]
    return "\n".join(lines)


def _table(title: str, rows: Mapping[str, str]) -> list[str]:
    if not rows:
        return []
    return [f"## {title}", "", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items()), ""]


def _reward(reward: Mapping[str, Any]) -> str:
    kind = next(kind for kind in ("rule", "model", "http", "plugin") if kind in reward)
    name = reward[kind].get("name", "")
    return f"{kind} {name}".strip() + f", weight {reward['weight']:g}"


def _public(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as a card may show it: addresses of reward servers and inline texts stay with the service."""
    shown: dict[str, Any] = json.loads(json.dumps(spec))
    for reward in shown["rewards"]:
        if "http" in reward:
            reward["http"]["url"] = "***"
    evaluation, ptx = shown.get("evaluation") or {}, shown.get("ptx") or {}
    for prompts in (shown["prompts"], evaluation.get("prompts"), ptx.get("texts")):
        if prompts and "inline" in prompts:
            prompts["inline"] = f"{len(prompts['inline'])} texts"
    return {name: shown[name] for name in shown if name not in ("labels", "notify")}


def _plain(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")
