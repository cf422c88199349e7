"""Rules that span several fields, outside the models, so that all of them can be reported together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from ppo_engine.config.algorithm import KLPenalty, KLPlacement
from ppo_engine.config.base import Config
from ppo_engine.config.rewards import RULES, RULES_WITH_ANSWERS, RewardComponent
from ppo_engine.config.run import GuardAction
from ppo_engine.config.train import TrainConfig
from ppo_engine.stats import SCALARS, Better, scalar_metric


class CrossCheck(Config):
    """A broken rule: the field to look at (path from the spec's root), a code and a sentence."""

    loc: tuple[str | int, ...]
    code: str
    detail: str
    allowed: tuple[str, ...] = ()


def cross_checks(config: TrainConfig) -> list[CrossCheck]:
    """All rules over several fields that `config` breaks; empty when it is sound."""
    parts = (_sizes, _sampling, _lengths, _models, _kl, _warmup, _texts, _rewards, _metrics, _guards)
    return [check for part in parts for check in part(config)]


def _check(loc: str, code: str, detail: str) -> CrossCheck:
    return CrossCheck(loc=tuple(loc.split(".")), code=code, detail=detail)


def _sizes(config: TrainConfig) -> Iterator[CrossCheck]:
    ppo = config.ppo
    if ppo.minibatch_size is not None and ppo.minibatch_size > ppo.batch_size:
        detail = f"must be at most batch_size ({ppo.batch_size})"
        yield _check("ppo.minibatch_size", "minibatch_too_large", detail)
    if ppo.microbatch_size is not None and ppo.microbatch_size > config.minibatch_size:
        detail = f"must be at most minibatch_size ({config.minibatch_size})"
        yield _check("ppo.microbatch_size", "microbatch_too_large", detail)
    if ppo.samples_per_prompt > ppo.batch_size:
        detail = f"must be at most batch_size ({ppo.batch_size}), which counts responses"
        yield _check("ppo.samples_per_prompt", "samples_above_batch", detail)
    if config.resources.processes > ppo.batch_size:
        detail = f"must be at most ppo.batch_size ({ppo.batch_size}): each process needs a response to work on"
        yield _check("resources.processes", "processes_above_batch", detail)
    if config.optimizer.warmup_steps > ppo.steps:
        yield _check("optimizer.warmup_steps", "warmup_too_long", f"must be at most ppo.steps ({ppo.steps})")


def _sampling(config: TrainConfig) -> Iterator[CrossCheck]:
    for field, off in (("top_k", 0), ("top_p", 1.0)):
        if getattr(config.generation, field) != off:
            detail = f"must be {off:g} (off): KL and ratio are measured under the full distribution"
            yield _check(f"generation.{field}", "truncated_sampling", detail)


def _lengths(config: TrainConfig) -> Iterator[CrossCheck]:
    generation, ppo = config.generation, config.ppo
    if generation.min_new_tokens > generation.max_new_tokens:
        detail = f"must be at most max_new_tokens ({generation.max_new_tokens})"
        yield _check("generation.min_new_tokens", "min_above_max", detail)
    if ppo.overlong_buffer_tokens is not None and ppo.overlong_buffer_tokens >= generation.max_new_tokens:
        detail = f"must be below generation.max_new_tokens ({generation.max_new_tokens})"
        yield _check("ppo.overlong_buffer_tokens", "buffer_too_long", detail)
    if ppo.mask_truncated and ppo.missing_eos_penalty is not None:
        detail = "has no effect with mask_truncated: those responses are not trained on"
        yield _check("ppo.missing_eos_penalty", "penalty_without_effect", detail)


def _models(config: TrainConfig) -> Iterator[CrossCheck]:
    model = config.model
    if model.lora is not None and model.trainable_layers is not None:
        detail = "give either `lora` or `trainable_layers`: adapters of frozen layers would be frozen too"
        yield _check("model.trainable_layers", "lora_and_layers", detail)
    if model.reference_reset_steps is not None and model.reference is not None:
        detail = "needs the default reference, the policy's own copy: another model cannot take its weights"
        yield _check("model.reference_reset_steps", "reset_of_other_reference", detail)


def _kl(config: TrainConfig) -> Iterator[CrossCheck]:
    kl, reference = config.kl, config.model.reference
    if reference is not None and reference.none is not None and kl.init_kl_coef > 0:
        detail = "must be 0 when model.reference is `none`: there is nothing to measure KL against"
        yield _check("kl.init_kl_coef", "kl_without_reference", detail)
    if kl.placement is KLPlacement.LOSS and kl.penalty is KLPenalty.KL:
        detail = "cannot be `kl` in the loss: the gradient of lp-ref has mean 0 and pulls nowhere; use k3, mse or full"
        yield _check("kl.penalty", "penalty_not_a_loss", detail)


def _warmup(config: TrainConfig) -> Iterator[CrossCheck]:
    ppo = config.ppo
    if ppo.critic_warmup_steps >= ppo.steps:
        yield _check("ppo.critic_warmup_steps", "warmup_too_long", f"must be below ppo.steps ({ppo.steps})")
    if ppo.critic_warmup_until is not None and ppo.critic_warmup_steps == 0:
        detail = "needs ppo.critic_warmup_steps: after so many steps the warm-up ends in any case"
        yield _check("ppo.critic_warmup_until", "warmup_without_end", detail)
    if ppo.critic_warmup_steps > 0 and ppo.vf_coef == 0:
        yield _check("ppo.vf_coef", "warmup_without_loss", "must be above 0 for the critic to warm up")


def _texts(config: TrainConfig) -> Iterator[CrossCheck]:
    if config.ptx is not None and config.ptx.texts.chat is not None:
        yield _check("ptx.texts.chat", "chat_of_texts", "is for prompts; these are texts as they are")


def _rewards(config: TrainConfig) -> Iterator[CrossCheck]:
    yield from reward_checks(config.rewards)
    for index, component in enumerate(config.rewards):
        yield from _answers(config, component, ("rewards", index, "rule"))
    if all(component.shadow for component in config.rewards):
        detail = "every reward is a shadow: nothing is left to train on"
        yield CrossCheck(loc=("rewards",), code="only_shadows", detail=detail)


def reward_checks(rewards: Sequence[RewardComponent]) -> Iterator[CrossCheck]:
    """Rules that the components of a reward break by themselves, whatever the prompts are."""
    seen: set[str] = set()
    for index, component in enumerate(rewards):
        loc = ("rewards", index)
        if component.name in seen:
            detail = f"`{component.name}` is used twice"
            yield CrossCheck(loc=(*loc, "name"), code="duplicate_name", detail=detail)
        seen.add(component.name)
        yield from _rule(component, (*loc, "rule"))
        if component.model is not None and component.model.chat and not component.model.include_prompt:
            detail = "must be true with `chat`: a template answers somebody"
            yield CrossCheck(loc=(*loc, "model", "include_prompt"), code="chat_without_prompt", detail=detail)


def _rule(component: RewardComponent, loc: tuple[str | int, ...]) -> Iterator[CrossCheck]:
    if component.rule is None:
        return
    if component.rule.name not in RULES:
        detail = f"no rule `{component.rule.name}`"
        yield CrossCheck(loc=(*loc, "name"), code="unknown_rule", detail=detail, allowed=tuple(RULES))


def param_checks(rewards: Sequence[RewardComponent]) -> Iterator[CrossCheck]:
    """What is wrong with the parameters of built-in rules. Apart from the other rules: reading schemas is work."""
    for index, component in enumerate(rewards):
        params = None if component.rule is None else RULES.get(component.rule.name)
        if component.rule is None or params is None:
            continue
        try:
            params.model_validate(component.rule.params)
        except ValidationError as error:
            loc, fields = ("rewards", index, "rule", "params"), tuple(params.model_fields)
            for e in error.errors():
                yield CrossCheck(loc=(*loc, *e["loc"]), code=e["type"], detail=e["msg"], allowed=fields)


def _answers(config: TrainConfig, component: RewardComponent, loc: tuple[str | int, ...]) -> Iterator[CrossCheck]:
    """Rules that compare with something in the prompt's JSON line need prompts that have such lines."""
    if component.rule is None or component.rule.name not in RULES_WITH_ANSWERS:
        return
    sets = {"prompts": config.prompts}
    if config.evaluation is not None:
        sets["evaluation.prompts"] = config.evaluation.prompts
    for name, prompts in sets.items():
        has_rows = prompts.dataset is not None or prompts.folder is not None
        if not has_rows and (prompts.file is None or not prompts.file.path.endswith(".jsonl")):
            wanted = "a `dataset`, a `folder` or a `file` of JSON lines"
            detail = f"`{component.rule.name}` needs answers: {name} must be {wanted}"
            yield CrossCheck(loc=loc, code="answers_needed", detail=detail)


def _metrics(config: TrainConfig) -> Iterator[CrossCheck]:
    if config.checkpoint.keep_best > 0:
        direction = config.checkpoint.best_direction
        yield from _metric(config, ("checkpoint", "best_metric"), config.best_metric, directed=direction is not None)
    stop = config.early_stop
    if stop is not None:
        yield from _metric(config, ("early_stop", "metric"), stop.metric, directed=stop.direction is not None)


def _guards(config: TrainConfig) -> Iterator[CrossCheck]:
    for index, rule in enumerate(config.guards):
        loc = ("guards", index)
        if rule.metric is not None:
            yield from _metric(config, (*loc, "metric"), rule.metric, directed=True)
        elif rule.action in (GuardAction.WARN, GuardAction.STOP):
            detail = f"cannot be `{rule.action}` for non_finite: the step has no result to go on with"
            yield CrossCheck(loc=(*loc, "action"), code="step_without_result", detail=detail)


def _metric(config: TrainConfig, loc: tuple[str | int, ...], key: str, *, directed: bool) -> Iterator[CrossCheck]:
    metric = scalar_metric(key)
    if metric is None:
        yield CrossCheck(loc=loc, code="unknown_metric", detail=f"no scalar metric `{key}`", allowed=tuple(SCALARS))
    elif key.startswith("eval/") and config.evaluation is None:
        yield CrossCheck(loc=loc, code="metric_without_evaluation", detail=f"`{key}` needs an `evaluation`")
    elif not directed and metric.better is Better.NEITHER:
        detail = f"`{key}` has no better direction of its own: give one"
        yield CrossCheck(loc=loc, code="direction_needed", detail=detail)
