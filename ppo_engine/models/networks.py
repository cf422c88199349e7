"""The networks of a run: policy, critic, reference and moving average, from their sources or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ppo_engine.checkpoint import AVERAGE, CRITIC, MODEL, Restored
from ppo_engine.config import ModelConfig, ModelSource, ValueHeadInit
from ppo_engine.errors import InvalidConfig
from ppo_engine.models.critic import Critic, load_critic, make_critic, save_critic
from ppo_engine.models.freezing import freeze_lower_layers
from ppo_engine.models.loading import load_language_model
from ppo_engine.models.overlay import OverlaidReference, Overlay, Reference, trained_tensors
from ppo_engine.models.policy import LanguageModel, Policy

if TYPE_CHECKING:
    from ppo_engine.models.lora import Adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The networks of a run and the policy's tokenizer."""

    policy: Policy
    reference: Reference | None
    tokenizer: PreTrainedTokenizerBase
    average: Overlay | None = None
    """The moving average of the policy's weights."""
    adapters: Adapters | None = None
    """What is trained of the policy, instead of its own weights."""

    def to(self, device: torch.device) -> Self:
        """Move what accelerate does not: all but the policy."""
        if isinstance(self.reference, LanguageModel):
            self.reference.to(device)
        elif isinstance(self.reference, OverlaidReference):
            self.reference.overlay.to(device)
        if self.average is not None:
            self.average.to(device)
        return self

    def hold_frozen(self, dtype: torch.dtype) -> None:
        """Hold in this precision what only computes: the reference, whichever it is."""
        if isinstance(self.reference, LanguageModel):
            for parameter in self.reference.parameters():  # not its buffers: rotary frequencies need fp32
                parameter.data = parameter.data.to(dtype)
        elif isinstance(self.reference, OverlaidReference):
            self.reference.overlay.to(dtype)

    def averaged(self) -> AbstractContextManager[None]:
        """The policy computes with its moving average, where it has one: for evaluations."""
        return nullcontext() if self.average is None else self.average.applied()

    def end_step(self, step: int, config: ModelConfig) -> None:
        """Move the average after the policy, and reset the reference when it is time."""
        current = trained_tensors(self.policy.language.model)
        if self.average is not None and config.ema_decay is not None:
            self.average.follow(current, config.ema_decay)
        every = config.reference_reset_steps
        if every is not None and step % every == 0 and isinstance(self.reference, OverlaidReference):
            self.reference.reset(current if self.average is None else self.average.values)

    def folders(self) -> dict[str, Callable[[Path], None]]:
        """The folders of a checkpoint, by name, and what writes each."""
        folders: dict[str, Callable[[Path], None]] = {MODEL: self._write}
        if self.average is not None:
            folders[AVERAGE] = partial(self._write_overlaid, self.average)
        if self.policy.critic is not None:
            folders[CRITIC] = partial(save_critic, self.policy.critic, self.policy.value_head)
        return folders

    def _write(self, folder: Path) -> None:
        if self.adapters is None:
            self.policy.language.model.save_pretrained(folder)
        else:
            self.adapters.save(folder)
        self.tokenizer.save_pretrained(folder)

    def _write_overlaid(self, overlay: Overlay, folder: Path) -> None:
        with overlay.applied():
            self._write(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a run starts from, whether it is resumed or not."""

    source: ModelSource
    """What the spec calls the policy."""
    language: LanguageModel
    """The policy before training."""
    tokenizer: PreTrainedTokenizerBase
    other_reference: LanguageModel | None
    """A reference that is another model."""

    def reference_of(self, config: ModelConfig) -> LanguageModel | None:
        """The model that KL is measured against until a reset."""
        if config.reference is not None and config.reference.none is not None:
            return None
        return self.other_reference or self.language


def assemble(config: ModelConfig, origin: Origin, restored: Restored | None, roots: Sequence[Path] = ()) -> Models:
    """Put the networks together on the CPU: new ones, or those of a checkpoint.

    Raises:
        InvalidConfig: the models do not fit each other or the spec.
    """
    _check_vocabulary(origin)
    critic = _critic(config, origin, restored, roots)
    language, adapters = _language(config, origin, restored)
    if config.trainable_layers is not None:
        freeze_lower_layers(language, config.trainable_layers)
    language.trunk.checkpoint_layers(config.gradient_checkpointing)
    return Models(
        policy=_policy(config, language, critic),
        reference=_reference(config, origin, language, adapters, restored),
        tokenizer=origin.tokenizer,
        average=None if config.ema_decay is None else _average(language, adapters, restored),
        adapters=adapters,
    )


def load_policy(config: ModelConfig, roots: Sequence[Path]) -> LanguageModel:
    """The policy before training: its model, with its adapter if it starts with one.

    Raises:
        ModelUnavailable: a model or adapter cannot be found or loaded.
        InvalidConfig: they do not fit each other.
    """
    language = load_language_model(config.policy, roots)
    if config.adapter is not None:
        _lora().merge(language.model, config.adapter, roots)
    return language


def load_trained(config: ModelConfig, checkpoint: Path, roots: Sequence[Path]) -> LanguageModel:
    """The policy as a checkpoint has it, for answering only.

    Raises:
        ModelUnavailable: a model, or the checkpoint's, cannot be loaded.
    """
    if config.lora is None:
        return _folder_model(checkpoint / MODEL)
    language = load_policy(config, roots)
    adapters: Adapters = _lora().Adapters(language.model, config.lora, config.policy)
    adapters.load(checkpoint / MODEL)
    return language


def _critic(config: ModelConfig, origin: Origin, restored: Restored | None, roots: Sequence[Path]) -> Critic | None:
    """A critic with its own trunk, if there is to be one; made before anything is put into the policy's layers."""
    if config.value.separate is None:
        return None
    if restored is not None and "value" in restored.tensors:
        return load_critic(restored.folder / CRITIC)
    return make_critic(config.value.separate, origin.language, roots)


def _policy(config: ModelConfig, language: LanguageModel, critic: Critic | None) -> Policy:
    if critic is None:
        init = ValueHeadInit.ZERO if config.value.shared is None else config.value.shared.init
        return Policy(language, init).eval()
    policy = Policy(language, ValueHeadInit.ZERO, critic=critic.trunk, head=critic.head)
    if config.gradient_checkpointing:
        policy.checkpoint_critic()
    return policy.eval()


def _lora() -> ModuleType:
    from ppo_engine.models import lora  # noqa: PLC0415 - PEFT takes a second to import, and few runs need it

    return lora


def _language(config: ModelConfig, origin: Origin, restored: Restored | None) -> tuple[LanguageModel, Adapters | None]:
    if config.lora is None:
        return origin.language if restored is None else _folder_model(restored.model), None
    adapters: Adapters = _lora().Adapters(origin.language.model, config.lora, origin.source)
    if restored is not None:
        adapters.load(restored.model)
    return origin.language, adapters


def _average(language: LanguageModel, adapters: Adapters | None, restored: Restored | None) -> Overlay:
    if restored is None or not (restored.folder / AVERAGE).is_dir():
        values = {name: tensor.clone() for name, tensor in trained_tensors(language.model).items()}
    elif adapters is not None:
        values = adapters.read(restored.folder / AVERAGE)
    else:
        stored = dict(_folder_model(restored.folder / AVERAGE).model.named_parameters())
        values = {name: stored[name].detach() for name in trained_tensors(language.model)}
    return Overlay(language.model, values)


def _check_vocabulary(origin: Origin) -> None:
    if origin.other_reference is not None:
        theirs, ours = origin.other_reference.head.vocabulary, origin.language.head.vocabulary
        if theirs != ours:
            raise InvalidConfig(f"model.reference has a vocabulary of {theirs}, the policy one of {ours}")


def _folder_model(folder: Path) -> LanguageModel:
    return load_language_model(ModelSource(path=str(folder)), [folder])


def _reference(
    config: ModelConfig,
    origin: Origin,
    language: LanguageModel,
    adapters: Adapters | None,
    restored: Restored | None,
) -> Reference | None:
    wanted = origin.reference_of(config)
    if wanted is not origin.language:
        return wanted
    reset = None if restored is None else restored.tensors.get("reference")
    if reset is not None:  # held in bf16 where it was saved in a run of that precision, and this may be another
        reset = {name: tensor.float() for name, tensor in reset.items()}
    values = reset or (_before_training(origin, language) if adapters is None else adapters.before_training())
    return OverlaidReference(language, Overlay(language.model, values), was_reset=reset is not None)


def _before_training(origin: Origin, language: LanguageModel) -> dict[str, Tensor]:
    """The initial values of the tensors that are trained."""
    initial = dict(origin.language.model.named_parameters())
    found = {name: initial[name].detach() for name in trained_tensors(language.model)}
    return {name: t.clone() for name, t in found.items()} if origin.language is language else found
