"""All that can be known of a run before its weights are loaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ppo_engine.config import TrainConfig
from ppo_engine.data.prompts import load_prompts
from ppo_engine.egress import NO_HOST_ALLOWED, Egress
from ppo_engine.errors import DiskFull, EngineError, InvalidConfig, OutOfMemory, WandbUnavailable
from ppo_engine.plans import DiskFacts, MemoryFacts, ModelFacts, Probe, PromptFacts
from ppo_engine.program.probe.findings import Findings
from ppo_engine.program.probe.machine import Machine, look
from ppo_engine.program.probe.memory import FP32, Networks, Shape, estimate
from ppo_engine.program.probe.outlines import (
    Outline,
    critic_outline,
    other_outline,
    policy_outline,
    positions,
    shape_of,
    train_only,
)
from ppo_engine.program.probe.texts import read_prompts, reward_model_parameters, try_rewards

_SURE, _TIGHT = 1.1, 0.85
"""The estimate is good to about a tenth: beyond the first share of the memory a run is refused, from the second on it
is warned of."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The policy, measured."""

    outline: Outline
    facts: ModelFacts
    networks: Networks


def probe(
    config: TrainConfig, *, roots: Sequence[Path], runs: Path | None = None, egress: Egress = NO_HOST_ALLOWED
) -> Probe:
    """Look at a run; nothing is written, and of models only configs, tokenizers and headers are read.

    A reward model of moderate size is the exception: it is loaded, and tried. Reward servers get one request.

    Args:
        roots: where paths of the spec resolve.
        runs: where its run directory would be.
    """
    found = Findings()
    model = _model(config, roots, found)
    tokenizer = None if model is None else model.outline.tokenizer
    lines, prompts = read_prompts(config.prompts, tokenizer, roots, found, "/prompts")
    evaluation = None
    if config.evaluation is not None:
        _, evaluation = read_prompts(config.evaluation.prompts, tokenizer, roots, found, "/evaluation/prompts")
    if config.ptx is not None:
        with found.noting("/ptx/texts"):
            load_prompts(config.ptx.texts, roots)
    rewards = try_rewards(config.rewards, lines, roots, egress, found)
    _check_wandb(config, found)
    machine = None
    with found.noting("/resources/device"):
        machine = look(config.resources)
    memory = disk = None
    if model is not None:
        _check_context(config, model.facts, prompts, found)
        _check_chat(config, model.facts, found)
        longest = prompts.tokens.maximum if prompts and prompts.tokens else 0
        memory = None if machine is None else _memory(config, model.networks, longest, machine, found)
        disk = _disk(config, model.networks, runs, found)
    return Probe(
        errors=found.errors,
        warnings=found.warnings,
        model=None if model is None else model.facts,
        prompts=prompts,
        evaluation_prompts=evaluation,
        rewards=rewards,
        memory=memory,
        disk=disk,
    )


# --- models -------------------------------------------------------------------------------------------------------


def _model(config: TrainConfig, roots: Sequence[Path], found: Findings) -> _Model | None:
    with found.noting("/model/policy"):
        outline = policy_outline(config, roots)
        whole = shape_of(outline.model)
        critic, other = _others(config, whole, outline.model.base_model, roots, found)
        with found.noting("/model/lora" if config.model.lora else "/model/trainable_layers"):
            train_only(outline.model, config)
        shape = shape_of(outline.model, config.model.trainable_layers)
        networks = Networks(
            policy=shape,
            critic=critic,
            value_head=1 + (critic or shape).hidden_size,
            other_reference=other,
            reward_models_bytes=_reward_bytes(config, roots),
            file_bytes=outline.file_bytes or 0,
        )
        return _Model(outline, _facts(config, outline, whole, networks.trained), networks)
    return None


def _others(
    config: TrainConfig, policy: Shape, base: Any, roots: Sequence[Path], found: Findings
) -> tuple[Shape | None, int]:
    """The critic, where it has a trunk of its own, and the parameters of a reference that is another model."""
    separate, reference = config.model.value.separate, config.model.reference
    critic, other = None, 0
    if separate is not None:
        with found.noting("/model/value/separate"):
            trunk = base if separate.source is None else critic_outline(separate.source, roots)
            critic = shape_of(trunk)
            _check_vocabulary("model.value.separate", critic.vocabulary, policy.vocabulary)
    if reference is not None and reference.source is not None:
        with found.noting("/model/reference"):
            shape = shape_of(other_outline(reference.source, roots))
            _check_vocabulary("model.reference", shape.vocabulary, policy.vocabulary)
            other = shape.parameters
    return critic, other


def _check_vocabulary(what: str, theirs: int, ours: int) -> None:
    if theirs != ours:
        raise InvalidConfig(f"{what} has a vocabulary of {theirs}, the policy one of {ours}")


def _facts(config: TrainConfig, outline: Outline, whole: Shape, trained: int) -> ModelFacts:
    source = config.model.policy
    return ModelFacts(
        name=source.path or source.hub or "",
        architecture=type(outline.model).__name__,
        parameters=whole.parameters,
        trainable_parameters=trained,
        layers=whole.layers,
        hidden_size=whole.hidden_size,
        vocabulary=whole.vocabulary,
        positions=positions(outline.model),
        file_bytes=outline.file_bytes,
        chat_template=bool(getattr(outline.tokenizer, "chat_template", None)),
    )


def _reward_bytes(config: TrainConfig, roots: Sequence[Path]) -> int:
    total = 0
    for component in config.rewards:
        if component.model is not None:
            try:
                total += FP32 * reward_model_parameters(component.model, roots)
            except EngineError:
                continue  # its trial says so
    return total


# --- does it fit --------------------------------------------------------------------------------------------------


def _check_context(config: TrainConfig, facts: ModelFacts, prompts: PromptFacts | None, found: Findings) -> None:
    longest = prompts.tokens.maximum if prompts and prompts.tokens else 0
    needed = longest + config.generation.max_new_tokens
    if facts.positions is not None and needed > facts.positions:
        error = InvalidConfig(
            f"the longest prompt ({longest} tokens) and generation.max_new_tokens need {needed} positions; "
            f"the model has {facts.positions}",
            suggestion="Lower generation.max_new_tokens, or set prompts.max_tokens to leave long prompts out.",
        )
        found.fail("/generation/max_new_tokens", error)


def _check_chat(config: TrainConfig, facts: ModelFacts, found: Findings) -> None:
    if facts.chat_template and config.prompts.chat is None:
        detail = "the policy's tokenizer has a chat template, and the prompts are not put through it"
        found.warn(
            "/prompts/chat", "chat_template_unused", detail, "Give prompts.chat {} for an instruction-tuned model."
        )


def _check_wandb(config: TrainConfig, found: Findings) -> None:
    if config.logging.wandb is not None and find_spec("wandb") is None:
        found.fail("/logging/wandb", WandbUnavailable("logging.wandb is set, and the package wandb is not installed"))


def _memory(
    config: TrainConfig, networks: Networks, prompt_tokens: int, machine: Machine, found: Findings
) -> MemoryFacts:
    half = machine.dtype is torch.bfloat16
    processes = config.resources.processes
    counted = estimate(config, networks, prompt_tokens=prompt_tokens, device=machine.device, width=2 if half else FP32)
    together = counted.peak * (processes if machine.device == "cpu" else 1)
    _judge(together, machine, found)
    return MemoryFacts(
        device=machine.device,
        device_name=machine.name,
        precision="bf16" if half else "fp32",
        processes=processes,
        peak_bytes=counted.peak,
        phase=counted.phase,
        loading_bytes=counted.loading,
        rollout_bytes=counted.rollout,
        optimise_bytes=counted.optimise,
        parts=counted.parts,
        device_bytes=machine.total_bytes,
        available_bytes=machine.available_bytes,
        fits=together <= machine.total_bytes,
    )


def _judge(needed: int, machine: Machine, found: Findings) -> None:
    gib = 2**30
    share, total = needed / machine.total_bytes, machine.total_bytes
    detail = f"the run needs about {needed / gib:.1f} GiB, and the {machine.device} has {total / gib:.1f} GiB"
    if share > _SURE:
        found.fail("/ppo/microbatch_size", OutOfMemory(detail))
    elif share > _TIGHT or needed > machine.available_bytes:
        free = f" ({machine.available_bytes / gib:.1f} GiB of them free just now)"
        found.warn("/ppo/microbatch_size", OutOfMemory.code, detail + free, OutOfMemory.suggestion)


def _disk(config: TrainConfig, networks: Networks, runs: Path | None, found: Findings) -> DiskFacts:
    """A checkpoint: the model in fp32 (with LoRA the adapters alone), moments, average and a reset reference."""
    policy, critic = networks.policy, networks.critic
    model = policy.trained if config.model.lora is not None else policy.parameters
    copies = (config.model.ema_decay is not None) + (config.model.reference_reset_steps is not None)
    one = FP32 * (model * (1 + copies) + (critic.parameters if critic else 0)) + 2 * FP32 * networks.trained
    keep = config.checkpoint
    written = -(-config.ppo.steps // keep.every_steps)
    kept = min(keep.keep_last + keep.keep_best + 1, max(1, written))
    free = None if runs is None or not runs.is_dir() else shutil.disk_usage(runs).free
    if free is not None and kept * one > free:
        detail = f"{kept} checkpoints need about {kept * one / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        found.fail("/checkpoint/keep_last", DiskFull(detail))
    return DiskFacts(checkpoint_bytes=one, kept=kept, needed_bytes=kept * one, free_bytes=free)
