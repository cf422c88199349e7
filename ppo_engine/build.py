"""From a spec to a trainer: load models, prompts and rewards, and check what only the loaded models can tell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from ppo_engine import checkpoint
from ppo_engine.config import ModelConfig, TrainConfig, cross_checks, param_checks
from ppo_engine.data.prompts import PromptSource, load_prompts
from ppo_engine.egress import NO_HOST_ALLOWED, Egress
from ppo_engine.errors import InvalidConfig
from ppo_engine.events import Phase
from ppo_engine.experience.evaluation import Evaluator
from ppo_engine.inheritance import Part, Takeover
from ppo_engine.models.conversion import without_gguf
from ppo_engine.models.loading import load_language_model, load_tokenizer
from ppo_engine.models.networks import Origin, assemble, load_policy
from ppo_engine.models.policy import LanguageModel
from ppo_engine.ranks import ALONE, Ranks
from ppo_engine.rewards import build_scorer
from ppo_engine.runtime import seed_everything
from ppo_engine.trainer import Trainer
from ppo_engine.training_state import restore
from ppo_engine.update.ptx import DEFAULT_MAX_TOKENS, TextSource

_FINGERPRINT_VALUES = 1024
"""Values of each tensor that enter a model's fingerprint: enough to tell two models apart, and fast at any size."""


def build_trainer(
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    roots: Sequence[Path],
    on_phase: Callable[[Phase], None],
    egress: Egress = NO_HOST_ALLOWED,
    resume: Path | Takeover | None = None,
    scratch: Path | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Trainer, dict[str, Any]]:
    """Load everything a run needs, and restore a checkpoint if one is given.

    Args:
        resume: a checkpoint of this run, or of another one.
        scratch: where GGUF files are converted; without it they cannot be used.

    Returns:
        The trainer, and the run's identity for its checkpoints.

    Raises:
        EngineError: a model, prompt set, reward or checkpoint is not usable, or rules of the spec are broken.
    """
    _require_sound(config)
    seed_everything(config.seed)
    folders = roots if scratch is None else [*roots, scratch]
    with ranks.main_first():
        model = without_gguf(config.model, roots, scratch)
    origin = Origin(
        source=config.model.policy,
        language=load_policy(model, folders),
        tokenizer=load_tokenizer(model.policy, folders),
        other_reference=_other_reference(model, folders),
    )
    identity = _identity(config, origin)
    restored = None if resume is None else _restored(resume, identity)
    models = assemble(model, origin, restored, folders)
    language, tokenizer = models.policy.language, models.tokenizer
    prompts = PromptSource(
        load_prompts(config.prompts, roots),
        tokenizer,
        max_tokens=config.prompts.max_tokens,
        shuffle=config.prompts.shuffle,
        seed=config.seed,
        chat=config.prompts.chat,
    )
    _require_context(config, language, prompts)
    evaluator = _evaluator(config, tokenizer, roots)
    if restored is not None and isinstance(resume, Path):
        _require_same_evaluation(restored.values, evaluator)
    device = accelerator.device
    trainer = Trainer(
        config,
        accelerator,
        models.to(device),
        prompts,
        build_scorer(config.rewards, roots=roots, device=device, egress=egress),
        on_phase,
        evaluator,
        texts=_texts(config, language, tokenizer, roots),
        ranks=ranks,
    )
    if restored is not None:
        anew = resume.anew if isinstance(resume, Takeover) else frozenset()
        restore(trainer, restored.values, restored.tensors, anew)
    return trainer, identity


def _restored(resume: Path | Takeover, identity: dict[str, Any]) -> checkpoint.Restored:
    """A checkpoint of this run; or of another one, whose spec and, with weights alone, whose reference may differ."""
    if isinstance(resume, Path):
        return checkpoint.load(resume, identity)
    weights_only = Part.TRAINING in resume.anew
    shared = ("frozen",) if weights_only else ("frozen", "reference")
    found = checkpoint.load(resume.folder, {key: identity[key] for key in shared})
    if not weights_only:
        return found
    kept = {} if Part.CRITIC in resume.anew else {"value": found.tensors["value"]}
    return replace(found, tensors=kept, values={})


def _evaluator(config: TrainConfig, tokenizer: PreTrainedTokenizerBase, roots: Sequence[Path]) -> Evaluator | None:
    evaluation = config.evaluation
    if evaluation is None:
        return None
    prompts = PromptSource(
        load_prompts(evaluation.prompts, roots),
        tokenizer,
        max_tokens=evaluation.prompts.max_tokens,
        shuffle=False,
        seed=config.seed,
        chat=evaluation.prompts.chat,
    )
    return Evaluator(
        prompts=prompts.all,
        fingerprint=prompts.fingerprint,
        config=evaluation,
        training=config.generation,
        batch_size=config.ppo.batch_size,
        samples=config.logging.samples_per_step,
    )


def _require_same_evaluation(values: Mapping[str, Any], evaluator: Evaluator | None) -> None:
    """Numbers before and after would not compare; a checkpoint from before these digests has none."""
    before = values.get("evaluation")
    if before is not None and evaluator is not None and evaluator.fingerprint != before:
        raise InvalidConfig("the evaluation prompts are not those that this run began with")


def _require_sound(config: TrainConfig) -> None:
    checks = [*cross_checks(config), *param_checks(config.rewards)]
    broken = [f"{'.'.join(str(part) for part in check.loc)}: {check.detail}" for check in checks]
    if broken:
        raise InvalidConfig("; ".join(broken))


def _other_reference(config: ModelConfig, roots: Sequence[Path]) -> LanguageModel | None:
    wanted = config.reference
    if wanted is None or wanted.source is None:
        return None
    return load_language_model(wanted.source, roots).requires_grad_(False)


def _identity(config: TrainConfig, origin: Origin) -> dict[str, Any]:
    """What a checkpoint must agree with, to be resumed by this run."""
    reference = origin.reference_of(config.model)
    partly = config.model.lora is not None or config.model.trainable_layers is not None
    return {
        "spec": config_digest(config),
        "reference": None if reference is None else fingerprint(reference),
        "frozen": fingerprint(origin.language) if partly else None,
    }


def _texts(config: TrainConfig, language: LanguageModel, tokenizer: Any, roots: Sequence[Path]) -> TextSource | None:
    if config.ptx is None:
        return None
    wanted = config.ptx.texts
    longest = wanted.max_tokens or DEFAULT_MAX_TOKENS
    return TextSource(
        [line.text for line in load_prompts(wanted, roots)],
        tokenizer,
        max_tokens=min(longest, positions(language) or longest),
        shuffle=wanted.shuffle,
        seed=config.seed,
    )


def positions(language: LanguageModel) -> int | None:
    """How many tokens the model can read, where it says."""
    limit = getattr(language.model.config.get_text_config(), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def _require_context(config: TrainConfig, language: LanguageModel, prompts: PromptSource) -> None:
    limit = positions(language)
    needed = prompts.longest + config.generation.max_new_tokens
    if limit is not None and needed > limit:
        raise InvalidConfig(
            f"the longest prompt ({prompts.longest} tokens) and generation.max_new_tokens need {needed} positions; "
            f"the model has {limit}",
            suggestion="Lower generation.max_new_tokens, or set prompts.max_tokens to leave long prompts out.",
        )


_NOT_DECISIVE = {"checkpoint", "logging", "resources", "evaluation", "early_stop", "guards"}


def config_digest(config: TrainConfig) -> str:
    """Digest of what decides the numbers of a run: a checkpoint resumes only the run it came from."""
    decisive = config.model_dump(mode="json", exclude=_NOT_DECISIVE)
    del decisive["ppo"]["microbatch_size"]  # after memory ran out a run goes on with less
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """Digest of names, shapes and a spread of values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        part = flat[:: max(1, len(flat) // _FINGERPRINT_VALUES)].float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + part.tobytes())
    return digest.hexdigest()
