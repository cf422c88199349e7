"""Whether a run's numbers look well: rules over its newest metrics, each with its source and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.history import owned
from jobs.tables import JobMetrics
from jobs.views import FindingView, HealthView

_START_STEPS = 5
_RECENT_STEPS = 20
_ALERT = "deploy/prometheus/alerts.yml"


class Level(StrEnum):
    """How bad a finding is; also the health of a job, which is that of its worst finding."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    """The run will hardly recover by itself."""


class Base(StrEnum):
    """What a value is divided by before it is compared: medians over steps."""

    START = "start"
    """Of the first five steps."""
    RECENT = "recent"
    """Of the twenty steps before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition. `above` and `below` bound the value, or with `base` its quotient with that of other steps."""

    name: str
    metric: str
    level: Level
    above: float | None = None
    below: float | None = None
    base: Base | None = None
    least: float | None = None
    """Only for values above this: a spike of something tiny is none."""
    from_step: int = 1
    source: str
    advice: str

    def broken_by(self, value: float) -> bool:
        """Whether a value, or a quotient, is out of bounds."""
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)

    @property
    def text(self) -> str:
        """The condition in words."""
        bound = f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"
        if self.base is None:
            return f"{self.metric} {bound}"
        steps = f"first {_START_STEPS}" if self.base is Base.START else f"last {_RECENT_STEPS}"
        return f"{self.metric} {bound} times its median over the {steps} steps"


RULES: tuple[Rule, ...] = (
    Rule(
        name="kl_runaway",
        metric="objective/kl",
        level=Level.CRITICAL,
        above=25.0,
        source=f"{_ALERT} PpoKlRunningAway; four times the usual target of 6 nats (Ziegler et al. 2019)",
        advice="Raise kl.init_kl_coef or lower kl.adaptive.target, and lower optimizer.learning_rate; fork from a "
        "checkpoint before the rise.",
    ),
    Rule(
        name="kl_negative",
        metric="objective/kl",
        level=Level.WARNING,
        below=-1.0,
        source=f"{_ALERT} PpoKlNegative; TRL's documents on PPO's metrics",
        advice="What is sampled is not what is scored: see sampling/logprob_mismatch, try resources.precision fp32.",
    ),
    Rule(
        name="entropy_collapse",
        metric="ppo/policy/entropy",
        level=Level.CRITICAL,
        below=0.1,
        source=f"{_ALERT} PpoEntropyCollapse",
        advice="The policy gives one answer to everything. Raise ppo.entropy_coef or the KL penalty, and fork from a "
        "checkpoint before the fall.",
    ),
    Rule(
        name="entropy_falling",
        metric="ppo/policy/entropy",
        level=Level.WARNING,
        below=0.3,
        base=Base.START,
        source="ours: the way to the collapse above",
        advice="Read samples. If they are all alike, raise ppo.entropy_coef or lower optimizer.learning_rate.",
    ),
    Rule(
        name="ratio_exploded",
        metric="ppo/policy/ratio_max",
        level=Level.WARNING,
        above=100.0,
        source=f"{_ALERT} PpoRatioExploded; TRL's documents on PPO's metrics",
        advice="Updates are far too large: lower optimizer.learning_rate or ppo.ppo_epochs, or set ppo.target_kl.",
    ),
    Rule(
        name="clipfrac_high",
        metric="ppo/policy/clipfrac",
        level=Level.WARNING,
        above=0.4,
        source="ours: with so many tokens clipped, most of an epoch's gradient is thrown away",
        advice="Lower optimizer.learning_rate or ppo.ppo_epochs, or set ppo.target_kl.",
    ),
    Rule(
        name="updates_skipped",
        metric="ppo/skipped_updates",
        level=Level.WARNING,
        above=0.0,
        source=f"{_ALERT} PpoUpdatesSkipped; TRL's ratio_threshold",
        advice="The ratio guard throws updates away: lower optimizer.learning_rate or ppo.ppo_epochs.",
    ),
    Rule(
        name="critic_useless",
        metric="ppo/val/explained_variance",
        level=Level.WARNING,
        below=0.0,
        from_step=10,
        source="definition: below 0 the critic is worse than the mean return",
        advice="Raise ppo.vf_coef or optimizer.value_learning_rate, or set ppo.critic_warmup_steps; check the reward's "
        "range.",
    ),
    Rule(
        name="value_loss_spike",
        metric="ppo/loss/value",
        level=Level.WARNING,
        above=10.0,
        base=Base.RECENT,
        least=1.0,
        source=f"{_ALERT} PpoValueLossSpike",
        advice="Set ppo.score_clip and optimizer.max_grad_norm. If it stays, fork from a checkpoint before it.",
    ),
    Rule(
        name="reward_without_spread",
        metric="env/reward_std",
        level=Level.CRITICAL,
        below=1e-6,
        source="definition: advantages of equal rewards say nothing",
        advice="All responses earn the same, so nothing is learned: check the reward, or raise the temperature.",
    ),
    Rule(
        name="reward_errors",
        metric="env/reward_errors",
        level=Level.WARNING,
        above=0.1,
        source="ours: a tenth of the batch without a score",
        advice="See the log for what the reward component answers.",
    ),
    Rule(
        name="length_growing",
        metric="tokens/responses_len_mean",
        level=Level.WARNING,
        above=2.0,
        base=Base.START,
        source="ours: length is the commonest way to hack a reward (Singhal et al. 2023, arXiv:2310.03716)",
        advice="Read samples. If length alone is rewarded, add a length rule or ppo.overlong_penalty.",
    ),
    Rule(
        name="length_shrinking",
        metric="tokens/responses_len_mean",
        level=Level.WARNING,
        below=0.5,
        base=Base.START,
        source="ours: as above",
        advice="Read samples. Set generation.min_new_tokens, or reward longer answers.",
    ),
    Rule(
        name="text_drift",
        metric="objective/ref_perplexity",
        level=Level.WARNING,
        above=10.0,
        base=Base.START,
        source="ours: text that the reference finds so unlikely is mostly no language any more",
        advice="Read samples. If they are broken, raise kl.init_kl_coef and fork from an earlier checkpoint.",
    ),
    Rule(
        name="sampler_mismatch",
        metric="sampling/logprob_mismatch",
        level=Level.WARNING,
        above=0.1,
        source=f"{_ALERT} PpoSamplerMismatch",
        advice="Generation and scoring disagree, so KL and ratio are wrong: train with resources.precision fp32.",
    ),
)
"""Every rule. Where an alert has the same condition, the numbers are the same; a test compares them."""

_LEVELS = list(Level)


def verdict(latest: Mapping[str, float], step: int) -> str | None:
    """Health by the newest numbers alone, without what only earlier steps can tell; None before the first step."""
    if step == 0 or not latest:
        return None
    rules = (rule for rule in RULES if rule.base is None and rule.metric in latest and step >= rule.from_step)
    return _worst([rule.level for rule in rules if rule.broken_by(latest[rule.metric])])


def health(db: Database, principal: Principal, job_id: str) -> HealthView:
    """What the rules find in the newest step, compared with the first and the last steps where they say so."""
    steps = sa.select(JobMetrics).where(JobMetrics.job_id == job_id, JobMetrics.step > 0)
    with db.read() as session:
        owned(session, principal, job_id)
        first = list(session.scalars(steps.order_by(JobMetrics.step).limit(_START_STEPS)))
        newest = list(session.scalars(steps.order_by(JobMetrics.step.desc()).limit(_RECENT_STEPS + 1)))
    if not newest:
        return HealthView(job_id=job_id, step=None, status=None, findings=[])
    last = newest[0]
    before = {Base.START: [row.scalars for row in first], Base.RECENT: [row.scalars for row in newest[1:]]}
    found = [finding for rule in RULES if (finding := _finding(rule, last.step, last.scalars, before)) is not None]
    found.sort(key=lambda finding: -_LEVELS.index(Level(finding.level)))
    status = _worst([Level(finding.level) for finding in found])
    return HealthView(job_id=job_id, step=last.step, status=status, findings=found)


def _finding(
    rule: Rule, step: int, scalars: Mapping[str, float], before: Mapping[Base, Sequence[Mapping[str, float]]]
) -> FindingView | None:
    value = scalars.get(rule.metric)
    if value is None or step < rule.from_step or (rule.least is not None and value <= rule.least):
        return None
    usual = None
    if rule.base is not None:
        known = [numbers[rule.metric] for numbers in before[rule.base] if rule.metric in numbers]
        usual = median(known) if len(known) >= _START_STEPS and step > _START_STEPS else None
        if usual is None or usual <= 0:
            return None
    if not rule.broken_by(value if usual is None else value / usual):
        return None
    return FindingView(
        name=rule.name,
        level=rule.level.value,
        metric=rule.metric,
        value=value,
        usual=usual,
        rule=rule.text,
        advice=rule.advice,
        source=rule.source,
    )


def _worst(levels: Sequence[Level]) -> str:
    return max(levels, key=_LEVELS.index, default=Level.OK).value
