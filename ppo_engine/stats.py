"""The list of numbers a run reports: key, unit, help and good direction, once. Torch-free.

TensorBoard, the database, Prometheus and the documents are made from METRICS. The keys and formulas are those of TRL
0.11.4's classic PPO trainer; those marked `ours` were asked for by its users and are absent there. Averages marked
"mean over updates" are masked means per minibatch update, then the plain mean over all updates of the step, as in TRL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What is stored of a metric."""

    SCALAR = "scalar"
    HISTOGRAM = "histogram"


class Better(StrEnum):
    """Which direction is good; most numbers have none."""

    UP = "up"
    DOWN = "down"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number reported at every step it is defined for."""

    key: str
    unit: str
    help: str
    kind: Kind = Kind.SCALAR
    better: Better = Better.NEITHER
    ours: bool = False

    @property
    def prometheus_name(self) -> str:
        """`ppo_` + the key, `/` -> `_`; a leading `ppo/` is not doubled."""
        return prometheus_name(self.key)


def prometheus_name(key: str) -> str:
    """Name of a key on `/metrics/jobs`.

    `_total` belongs to counters and ours are gauges, so `ppo/loss/total` is `ppo_loss_total_value`. A per-component
    family is one metric with the component's name as a label.
    """
    family = family_of(key)
    if family is not None:
        return family.prometheus_name
    name = "ppo_" + re.sub(r"[^a-zA-Z0-9]", "_", key.removeprefix("ppo/"))
    return f"{name}_value" if name.endswith("_total") else name


_UPDATES = "mean over updates"
H, UP, DOWN = Kind.HISTOGRAM, Better.UP, Better.DOWN

METRICS: tuple[Metric, ...] = (
    Metric("env/reward_mean", "score", "Mean raw reward, before any scaling.", better=UP),
    Metric("env/reward_std", "score", "Standard deviation of the raw reward."),
    Metric("env/reward_dist", "score", "Raw rewards.", H),
    Metric(
        "ppo/mean_scores",
        "score",
        "Mean of what a response earns: its score after scaling, clipping and length penalties, plus dense rewards.",
        better=UP,
    ),
    Metric("ppo/std_scores", "score", "Standard deviation of what a response earns."),
    Metric("ppo/mean_non_score_reward", "score/token", "Masked mean of -kl_coef*kl; negative when KL is positive."),
    Metric(
        "objective/kl",
        "nats/sequence",
        "KL from the reference before the update, summed over each response.",
        better=DOWN,
    ),
    Metric("objective/kl_dist", "nats/sequence", "KL per response.", H),
    Metric("objective/kl_coef", "1", "KL coefficient used in this step."),
    Metric(
        "objective/entropy", "nats/sequence", "Minus the summed logprobs of the sampled tokens, mean over responses."
    ),
    Metric("objective/logprobs", "nats", "Policy logprobs of the response tokens.", H),
    Metric("objective/ref_logprobs", "nats", "Reference logprobs of the response tokens.", H),
    Metric("ppo/learning_rate", "1", "Learning rate of the policy used in this step; 0 while only the critic trains."),
    Metric("ppo/loss/policy", "1", f"Clipped policy loss; {_UPDATES}."),
    Metric("ppo/loss/value", "score^2", f"Clipped value loss without vf_coef; {_UPDATES}.", better=DOWN),
    Metric("ppo/loss/total", "1", f"Policy loss + vf_coef * value loss + the entropy, KL and ptx terms; {_UPDATES}."),
    Metric("ppo/policy/entropy", "nats/token", f"Entropy over the whole vocabulary; {_UPDATES}."),
    Metric(
        "ppo/policy/approxkl", "nats/token", f"Half the squared logprob change (k2) from the old policy; {_UPDATES}."
    ),
    Metric("ppo/policy/policykl", "nats/token", f"Old minus new logprob (k1); {_UPDATES}."),
    Metric("ppo/policy/clipfrac", "fraction", f"Share of tokens where the clipped term is the larger; {_UPDATES}."),
    Metric("ppo/policy/ratio", "1", "Probability ratio new/old of the response tokens over all updates.", H),
    Metric("ppo/policy/advantages", "1", "Advantages of the response tokens.", H),
    Metric("ppo/policy/advantages_mean", "1", f"Mean advantage; {_UPDATES}."),
    Metric("ppo/returns/mean", "score", f"Mean return; {_UPDATES}."),
    Metric("ppo/returns/var", "score^2", f"Variance of the return; {_UPDATES}."),
    Metric("ppo/val/mean", "score", f"Mean value at rollout; {_UPDATES}."),
    Metric("ppo/val/var", "score^2", f"Variance of the value at rollout; {_UPDATES}."),
    Metric("ppo/val/vpred", "score", f"Mean value under the moving critic; {_UPDATES}."),
    Metric("ppo/val/error", "score^2", f"Mean squared value error; {_UPDATES}.", better=DOWN),
    Metric("ppo/val/clipfrac", "fraction", f"Share of tokens where the clipped value error is the larger; {_UPDATES}."),
    Metric("ppo/val/var_explained", "1", "1 - mean value error / mean return variance.", better=UP),
    Metric("tokens/queries_len_mean", "tokens", "Mean prompt length."),
    Metric("tokens/queries_len_std", "tokens", "Standard deviation of the prompt length."),
    Metric("tokens/queries_dist", "tokens", "Prompt lengths.", H),
    Metric("tokens/responses_len_mean", "tokens", "Mean response length."),
    Metric("tokens/responses_len_std", "tokens", "Standard deviation of the response length."),
    Metric("tokens/responses_dist", "tokens", "Response lengths.", H),
    Metric("tokens/responses_len_dist", "tokens", "The same under the name that TRL's documents use.", H),
    Metric("time/ppo/rollout", "s", "Generation.", ours=True),
    Metric("time/ppo/scoring", "s", "Reward components.", ours=True),
    Metric("time/ppo/forward_pass", "s", "Logprobs and values of policy and reference."),
    Metric("time/ppo/compute_rewards", "s", "Per-token rewards."),
    Metric("time/ppo/compute_advantages", "s", "Advantages and returns."),
    Metric("time/ppo/optimize_step", "s", "All PPO epochs."),
    Metric("time/ppo/calc_stats", "s", "These statistics."),
    Metric("time/ppo/checkpoint", "s", "Writing the checkpoint, in steps that write one.", ours=True),
    Metric("time/ppo/total", "s", "The whole step."),
    Metric("objective/perplexity", "1", "exp of the mean -logprob per token under the policy.", ours=True),
    Metric("objective/ref_perplexity", "1", "exp of the mean -logprob per token under the reference.", ours=True),
    Metric(
        "objective/rlhf_reward", "score", "Mean score minus kl_coef * KL of the whole response.", better=UP, ours=True
    ),
    Metric("ppo/grad_norm", "1", "Mean gradient norm before clipping.", ours=True),
    Metric("ppo/value_learning_rate", "1", "Learning rate of the critic used in this step.", ours=True),
    Metric("ppo/skipped_updates", "updates", "Minibatch updates skipped by the ratio guard.", better=DOWN, ours=True),
    Metric("ppo/epochs_run", "epochs", "PPO epochs before target_kl stopped them.", ours=True),
    Metric("ppo/loss/entropy", "1", f"Entropy term of the loss: -entropy_coef * entropy; {_UPDATES}.", ours=True),
    Metric("ppo/loss/kl", "1", f"KL term of the loss, with its coefficient; {_UPDATES}.", ours=True),
    Metric("ppo/loss/ptx", "nats/token", f"Language-model loss on the ptx texts; {_UPDATES}.", better=DOWN, ours=True),
    Metric("objective/ptx_perplexity", "1", "exp of ppo/loss/ptx.", better=DOWN, ours=True),
    Metric(
        "env/reward_errors", "fraction", "Share of responses that a component could not score.", better=DOWN, ours=True
    ),
    Metric("ppo/policy/ratio_max", "1", "Largest probability ratio of the step.", better=DOWN, ours=True),
    Metric(
        "ppo/val/explained_variance", "1", "1 - Var(return - value) / Var(return), at rollout.", better=UP, ours=True
    ),
    Metric("tokens/eos_fraction", "fraction", "Share of responses that ended by themselves.", ours=True),
    Metric("tokens/truncated_fraction", "fraction", "Share of responses cut by max_new_tokens.", ours=True),
    Metric("tokens/per_second", "tokens/s", "Response tokens per second of the whole step.", better=UP, ours=True),
    Metric("eval/reward_mean", "score", "Mean raw reward over the evaluation set.", better=UP, ours=True),
    Metric("eval/reward_std", "score", "Standard deviation of the raw reward over the evaluation set.", ours=True),
    Metric("eval/kl", "nats/sequence", "KL from the reference over the evaluation set, k1.", better=DOWN, ours=True),
    Metric("eval/entropy", "nats/sequence", "As objective/entropy, over the evaluation set.", ours=True),
    Metric("eval/responses_len_mean", "tokens", "Mean response length over the evaluation set.", ours=True),
    Metric("eval/eos_fraction", "fraction", "Share of evaluation responses that ended by themselves.", ours=True),
    Metric("time/ppo/evaluation", "s", "The evaluation, in steps that have one.", ours=True),
    Metric(
        "memory/peak_bytes",
        "bytes",
        "Peak memory: of the device on CUDA, of the process on CPU; the largest of several processes.",
        ours=True,
    ),
    Metric(
        "sampling/logprob_mismatch",
        "nats/token",
        "Mean absolute difference of the sampler's and the scorer's logprobs.",
        better=DOWN,
        ours=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Family:
    """Keys that depend on the spec: one per reward component."""

    prefix: str
    metric: Metric
    prometheus_name: str

    def key(self, component: str) -> str:
        """Key of one component."""
        return f"{self.prefix}{component}_mean"

    def component(self, key: str) -> str | None:
        """The component's name in a key of this family; None for other keys."""
        inside = key.removeprefix(self.prefix)
        match = _COMPONENT.match(inside) if inside != key else None
        return None if match is None else match[1]


REWARDS = Family(
    "env/reward/",
    Metric("env/reward/<component>_mean", "score", "Mean raw score of one reward component.", better=UP, ours=True),
    "ppo_env_reward_component_mean",
)
EVAL_REWARDS = Family(
    "eval/reward/",
    Metric("eval/reward/<component>_mean", "score", "The same over the evaluation set.", better=UP, ours=True),
    "ppo_eval_reward_component_mean",
)
FAMILIES = (REWARDS, EVAL_REWARDS)

SCALARS: dict[str, Metric] = {metric.key: metric for metric in METRICS if metric.kind is Kind.SCALAR}
HISTOGRAMS: dict[str, Metric] = {metric.key: metric for metric in METRICS if metric.kind is Kind.HISTOGRAM}

_COMPONENT = re.compile(r"^([a-z0-9][a-z0-9_-]{0,62})_mean$")


def family_of(key: str) -> Family | None:
    """The family that `key` belongs to."""
    return next((family for family in FAMILIES if family.component(key) is not None), None)


def scalar_metric(key: str) -> Metric | None:
    """The scalar that `key` names, members of families included."""
    family = family_of(key)
    return SCALARS.get(key) if family is None else family.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """All that one step reports. A statistic that is undefined (a deviation of one sample) is absent, not NaN.

    Raises:
        ValueError: a key that is not in METRICS.
    """

    step: int
    scalars: Mapping[str, float]
    histograms: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [key for key in self.scalars if scalar_metric(key) is None]
        unknown += [key for key in self.histograms if key not in HISTOGRAMS]
        if unknown:
            raise ValueError(f"not in ppo_engine.stats.METRICS: {', '.join(sorted(unknown))}")
