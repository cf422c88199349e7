"""Coming from TRL: each field of the classic trainer's `PPOConfig` (0.11.4), where it went, and why where it did not.

Torch-free. `docs/from-trl.md` is made from FIELDS, and replay reads recorded runs through `spec_fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrlField:
    """One field of TRL's `PPOConfig`."""

    name: str
    ours: str | None
    """Path in a job spec; None where there is no counterpart."""
    note: str = ""
    copied: bool = False
    """The value means the same in both: it is copied as it is."""


def _same(name: str, ours: str, note: str = "") -> TrlField:
    return TrlField(name, ours, note, copied=True)


FIELDS: tuple[TrlField, ...] = (
    TrlField("exp_name", "name"),
    _same("seed", "seed"),
    TrlField("log_with", "logging.tensorboard", "TensorBoard is on by default, histograms and samples included."),
    TrlField("task_name", "labels", "Labels are free pairs that jobs can be listed by."),
    TrlField("model_name", "model.policy", "There only a label for trackers; here what is trained: `path` or `hub`."),
    TrlField(
        "query_dataset", "prompts", "There only a label; here the prompts: `inline`, `file`, `dataset` or `folder`."
    ),
    TrlField("reward_model", "rewards", "There only a label; here the rewards themselves, any number, with weights."),
    TrlField("remove_unused_columns", None, "A prompt file's field is named in `prompts.file.field`."),
    TrlField("tracker_kwargs", None, "Nothing to configure: the run directory holds the TensorBoard files."),
    TrlField("accelerator_kwargs", None, "`resources.device` and `resources.precision` are all it needs."),
    TrlField("project_kwargs", None, "The service lays out the run directory."),
    TrlField("tracker_project_name", "labels"),
    TrlField("push_to_hub_if_best_kwargs", None, "Checkpoints are downloaded; nothing is sent anywhere."),
    TrlField("steps", "ppo.steps", "Counted samples there (it ran steps / batch_size updates); counts updates here."),
    _same("learning_rate", "optimizer.learning_rate"),
    TrlField("adap_kl_ctrl", "kl.adaptive, kl.fixed", "True: `adaptive`; False: `fixed: {}`."),
    _same("init_kl_coef", "kl.init_kl_coef"),
    _same("kl_penalty", "kl.penalty"),
    _same("target", "kl.adaptive.target"),
    _same("horizon", "kl.adaptive.horizon"),
    _same("gamma", "ppo.gamma"),
    _same("lam", "ppo.gae_lambda"),
    _same("cliprange", "ppo.clip_range"),
    _same("cliprange_value", "ppo.value_clip_range"),
    _same("vf_coef", "ppo.vf_coef"),
    _same("batch_size", "ppo.batch_size", "Need not be divisible by anything."),
    TrlField("forward_batch_size", "ppo.microbatch_size", "Deprecated there, overwrote mini_batch_size."),
    _same("mini_batch_size", "ppo.minibatch_size", "Default: the whole batch."),
    _same(
        "gradient_accumulation_steps",
        "ppo.gradient_accumulation_steps",
        "As there: minibatches of equal weight. To save memory use `ppo.microbatch_size`, which changes no number.",
    ),
    TrlField("world_size", None, "Filled in at start there; no option."),
    _same("ppo_epochs", "ppo.ppo_epochs"),
    _same("max_grad_norm", "optimizer.max_grad_norm", "There it clipped only the first optimizer step ever."),
    TrlField("optimize_cuda_cache", None, "Had no effect there."),
    TrlField("optimize_device_cache", None, "Memory is bounded by `ppo.microbatch_size`, not by emptying caches."),
    TrlField("early_stopping", "ppo.target_kl", "On when `target_kl` is given."),
    TrlField(
        "target_kl",
        "ppo.target_kl",
        "Compared (times 1.5) with the mean policykl of the epoch; there with that of its last minibatch.",
    ),
    TrlField("compare_steps", None, "Belonged to pushing the best model to the hub."),
    _same(
        "ratio_threshold", "ppo.ratio_threshold", "A skipped update leaves the weights alone, which it did not there."
    ),
    TrlField("use_score_scaling", "ppo.score_scaling", "`scale`. Crashed there since 0.10."),
    TrlField("use_score_norm", "ppo.score_scaling", "With use_score_scaling: `normalise`."),
    _same("score_clip", "ppo.score_clip"),
    _same("whiten_rewards", "ppo.whiten_rewards", "There whitened rewards leaked into padding."),
    TrlField("gradient_checkpointing", "model.gradient_checkpointing", "Had no effect there."),
    TrlField("is_encoder_decoder", None, "Decoder-only models."),
    TrlField("is_peft_model", "model.lora", "Filled in at start there, when the model that was passed had an adapter."),
    TrlField("backward_batch_size", None, "Computed there: mini_batch_size * gradient_accumulation_steps."),
    TrlField("global_backward_batch_size", None, "Computed there."),
    TrlField("global_batch_size", None, "Computed there."),
    TrlField("dataset_num_proc", None, "Unused there."),
)

ARGUMENTS: tuple[TrlField, ...] = (
    TrlField("model", "model.policy"),
    TrlField("peft_config", "model.lora", "A finished adapter is `model.adapter`, and part of the reference."),
    TrlField("v_head_init_strategy", "model.value.shared.init", "`zero` is ours, and the default."),
    TrlField("ref_model", "model.reference", "Default: the policy before training, as there."),
    TrlField("num_shared_layers", "model.trainable_layers", "Counts the layers that are trained, not the others."),
    TrlField("tokenizer", "model.policy", "The one in the model's folder."),
    TrlField("dataset", "prompts"),
    TrlField("optimizer", "optimizer", "AdamW."),
    TrlField("lr_scheduler", "optimizer.schedule", "`optimizer.warmup_steps` is the warm-up."),
    TrlField("data_collator", None, "Nothing to collate: prompts are texts."),
    TrlField("training_data_collator", None, "As data_collator."),
)
"""Arguments of TRL's `PPOTrainer` and `AutoModelForCausalLMWithValueHead`."""

METRIC_NOTES: dict[str, str] = {
    "objective/logprobs": "Of the trained response tokens; there prompt and padding were mixed in.",
    "objective/ref_logprobs": "As objective/logprobs.",
    "ppo/policy/ratio": "As objective/logprobs.",
    "ppo/policy/advantages": "As objective/logprobs, and once, not once per epoch.",
    "ppo/std_scores": "Absent for one sequence; NaN there.",
    "env/reward_std": "As ppo/std_scores.",
    "tokens/queries_len_std": "As ppo/std_scores.",
    "tokens/responses_len_std": "As ppo/std_scores.",
    "ppo/returns/var": "Absent where a minibatch has one token; NaN or infinite there.",
    "ppo/val/var": "As ppo/returns/var.",
    "ppo/val/var_explained": "As ppo/returns/var.",
    "ppo/loss/policy": "Of a skipped update too; 0 there. ppo/skipped_updates counts them.",
    "ppo/loss/value": "As ppo/loss/policy.",
    "ppo/loss/total": "As ppo/loss/policy.",
    "tokens/responses_len_dist": "The name that TRL's documents used for tokens/responses_dist; both are reported.",
    "time/ppo/total": "The whole step with rollout, scoring and checkpoint; there only the update.",
}
"""Keys whose meaning differs from TRL 0.11.4's, and how. `game_log` became the stored samples."""

NAMES = frozenset(field.name for field in FIELDS)


def spec_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec that TRL's options mean: nested, ready for `TrainConfig`.

    Raises:
        ValueError: an option that TRL 0.11.4 does not have, or one whose place in a spec needs a person.
    """
    unknown = sorted(set(options) - NAMES)
    if unknown:
        raise ValueError(f"not options of TRL 0.11.4's PPOConfig: {', '.join(unknown)}")
    by_name = {field.name: field for field in FIELDS}
    spec: dict[str, Any] = {}
    for name, value in options.items():
        field = by_name[name]
        if field.copied:
            _put(spec, field.ours or "", value)
        elif name not in _TOGETHER:
            raise ValueError(f"{name} has no value that can be copied: {field.note}")
    _put_controller(spec, options)
    _put_together(spec, options)
    return spec


_TOGETHER = {"adap_kl_ctrl", "early_stopping", "target_kl", "use_score_scaling", "use_score_norm"}
"""Options that mean something only together with others."""


def _put_controller(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    if not options.get("adap_kl_ctrl", True):
        spec.setdefault("kl", {}).pop("adaptive", None)
        _put(spec, "kl.fixed", {})


def _put_together(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    if options.get("early_stopping", False):
        _put(spec, "ppo.target_kl", options.get("target_kl", 1.0))
    if options.get("use_score_scaling", False):
        _put(spec, "ppo.score_scaling", "normalise" if options.get("use_score_norm", False) else "scale")


def _put(spec: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    spec[last] = value
