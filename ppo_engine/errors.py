"""Errors of a run: a stable code, a category that says whose move it is, whether a retry can help, and advice."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Category(StrEnum):
    """Whose move it is."""

    USER = "user"
    """The spec asks for something impossible."""
    DATA = "data"
    """A prompt set cannot be used."""
    REWARD = "reward"
    """A reward component misbehaved."""
    CONFIG = "config"
    """The numbers diverged: change a hyperparameter."""
    CAPACITY = "capacity"
    """The machine is too small."""
    INFRA = "infra"
    """Something beneath the run failed; it is tried again."""
    INTERNAL = "internal"
    """A defect of this software."""


class EngineError(Exception):
    """The run cannot go on."""

    code: ClassVar[str] = "internal"
    category: ClassVar[Category] = Category.INTERNAL
    retryable: ClassVar[bool] = False
    suggestion: ClassVar[str] = ""

    def __init__(self, message: str, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = self.suggestion if suggestion is None else suggestion


class InvalidConfig(EngineError):
    """The spec breaks a rule."""

    code = "invalid_config"
    category = Category.USER
    suggestion = "Correct the spec and submit again."


class ModelUnavailable(EngineError):
    """A model cannot be found or loaded."""

    code = "model_unavailable"
    category = Category.USER
    suggestion = "Check the path or hub id; weights must be safetensors and the architecture known to transformers."


class PromptsUnusable(EngineError):
    """No usable prompt."""

    code = "prompts_unusable"
    category = Category.DATA
    suggestion = "Check the file, the field's name and prompts.max_tokens."


class RewardFailed(EngineError):
    """A reward component returned the wrong count, a wrong shape or a non-finite score."""

    code = "reward_failed"
    category = Category.REWARD
    suggestion = "Fix the named reward component; scores must be one finite number per response."


class RewardUnavailable(RewardFailed):
    """A reward server did not answer as it should; it may later."""

    code = "reward_unavailable"
    retryable = True
    suggestion = "Check the reward server; the run goes on from its last checkpoint when it is tried again."


class RewardHostForbidden(EngineError):
    """A reward server where the operator does not let workers call."""

    code = "reward_host_forbidden"
    category = Category.USER
    suggestion = "Use a public address, or ask the operator to allow the host (PPO_REWARD_HOSTS, --reward-host)."


class NonFinite(EngineError):
    """A loss, score, advantage or gradient is not finite; the weights were left as they were."""

    code = "non_finite"
    category = Category.CONFIG
    suggestion = "Lower optimizer.learning_rate, set optimizer.max_grad_norm, or check the reward's range."


class GuardStopped(EngineError):
    """A guard ended the run, or rolled it back as often as it may."""

    code = "guard_stopped"
    category = Category.CONFIG
    suggestion = "Change what drives the metric (often a lower learning rate or a larger KL coefficient), or the guard."


class NothingToTrainOn(EngineError):
    """No response of a step has a token to train on: all were cut off, or could not be scored."""

    code = "nothing_to_train_on"
    category = Category.CONFIG
    suggestion = "Raise generation.max_new_tokens or turn ppo.mask_truncated off, and look at the reward's errors."


class CheckpointCorrupt(EngineError):
    """A checkpoint does not match its manifest or this run."""

    code = "checkpoint_corrupt"
    category = Category.INFRA
    retryable = True


class CheckpointGone(EngineError):
    """A checkpoint was removed meanwhile, by newer or better ones."""

    code = "checkpoint_gone"
    category = Category.USER
    suggestion = "Name another checkpoint of the job; checkpoint.keep_last and keep_best say how many are kept."


class DiskFull(EngineError):
    """No space for a checkpoint."""

    code = "disk_full"
    category = Category.CAPACITY
    suggestion = "Free space in the run directory, or lower checkpoint.keep_last."


class OutOfMemory(EngineError):
    """The device's memory is exhausted."""

    code = "out_of_memory"
    category = Category.CAPACITY
    suggestion = "Lower ppo.microbatch_size (changes no number), generation.max_new_tokens or ppo.batch_size."


class ProcessLost(EngineError):
    """One of several processes of a run died or hangs."""

    code = "process_lost"
    category = Category.INFRA
    retryable = True
    suggestion = "Look at the log for what that process said last; often its memory was exhausted."


class DeviceUnavailable(EngineError):
    """The wanted device is not here."""

    code = "device_unavailable"
    category = Category.CAPACITY
    suggestion = "Use resources.device `auto`, or a queue whose workers have the device."


class WandbUnavailable(EngineError):
    """Weights & Biases is asked for and cannot be used here."""

    code = "wandb_unavailable"
    category = Category.USER
    suggestion = (
        "Install the extra `wandb` where the engine runs, and give the worker's environment WANDB_API_KEY (logging."
        "wandb.mode `offline` needs none); or leave logging.wandb out."
    )


class WandbUnreachable(WandbUnavailable):
    """The server of Weights & Biases does not answer."""

    code = "wandb_unreachable"
    category = Category.INFRA
    retryable = True
    suggestion = "Use logging.wandb.mode `offline`; `wandb sync` sends the run later."
