"""Gathers what a run has told and writes it as a page and a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from jobs.views import JobView, MetricsView, SampleView
from ppo_client import comparison, page, plots
from ppo_client.client import PPOClient
from ppo_client.comparison import Comparison, Pair
from ppo_client.curves import EVAL_REWARD, number, run_time, why_ended
from ppo_client.progress import WARNINGS

_SAMPLES_PER_STEP = 64


@dataclass(frozen=True, slots=True)
class Report:
    """Where the report lies, and what it says in numbers."""

    html: Path
    png: Path
    steps: int
    reward_first: float | None
    reward_last: float | None
    kl_last: float | None
    pairs: list[Pair]


def write_report(client: PPOClient, job_id: str, folder: Path) -> Report:
    """Write `<job id>.html` and `<job id>.png` into `folder`.

    Raises:
        ApiError, ServiceUnreachable: as the client does.
        PlotsMissing: matplotlib is not installed.
    """
    job, metrics = client.get(job_id), client.metrics(job_id)
    compared = evaluated(client, job_id) or Comparison(before_and_after(client, job_id, metrics.steps))
    warnings = [event for event in client.events(job_id) if event.type in WARNINGS]
    pictures = plots.draw(metrics, kl_target=_kl_target(job), formats=("svg", "png"))
    folder.mkdir(parents=True, exist_ok=True)
    html, png = folder / f"{job_id}.html", folder / f"{job_id}.png"
    text = page.render(job, _facts(job, metrics), pictures["svg"].decode(), compared, warnings)
    html.write_text(text, encoding="utf-8")
    png.write_bytes(pictures["png"])
    first, last = ends(metrics, "env/reward_mean")
    return Report(html, png, job.progress.step, first, last, ends(metrics, "objective/kl")[1], compared.pairs)


def evaluated(client: PPOClient, job_id: str) -> Comparison | None:
    """Answers to the evaluation set before training and at its last evaluation; None where there are not both."""
    before = _some(client.samples(job_id, step=0, evaluation=True, page_size=_SAMPLES_PER_STEP))
    after = _some(client.samples(job_id, evaluation=True, page_size=_SAMPLES_PER_STEP))
    if not before or not after or after[0].step == 0:
        return None
    return Comparison(comparison.pair(before, after), "Before training", f"After step {after[0].step}")


def before_and_after(client: PPOClient, job_id: str, steps: list[int]) -> list[Pair]:
    """Stored responses of the first and the last steps of training, paired by prompt."""
    trained = [step for step in steps if step > 0]
    first, last = (
        [sample for step in comparison.window(trained, last=end) for sample in _samples(client, job_id, step)]
        for end in (False, True)
    )
    return comparison.pair(first, last)


def ends(metrics: MetricsView, key: str) -> tuple[float | None, float | None]:
    """Means of the first and of the last steps' values."""
    _, values = plots.points(metrics, key)
    if not values:
        return None, None
    span = comparison.WINDOW_STEPS
    return fmean(values[:span]), fmean(values[-span:])


def _samples(client: PPOClient, job_id: str, step: int) -> list[SampleView]:
    return _some(client.samples(job_id, step=step, evaluation=False, page_size=_SAMPLES_PER_STEP))


def _some(samples: Iterable[SampleView]) -> list[SampleView]:
    return list(islice(samples, _SAMPLES_PER_STEP))


def _kl_target(job: JobView) -> float | None:
    adaptive = (job.spec.get("kl") or {}).get("adaptive")
    return adaptive.get("target") if adaptive else None


def _facts(job: JobView, metrics: MetricsView) -> list[tuple[str, str]]:
    reward_first, reward_last = ends(metrics, "env/reward_mean")
    _, kl_last = ends(metrics, "objective/kl")
    policy = job.spec.get("model", {}).get("policy", {})
    _, eval_values = plots.points(metrics, EVAL_REWARD.key)
    some: list[tuple[str, str]] = []
    if eval_values:
        some.append(("Evaluated, first to last", f"{_text(eval_values[0])} → {_text(eval_values[-1])}"))
    if job.best_checkpoint_step is not None:
        some.append(("Best checkpoint", f"step {job.best_checkpoint_step}"))
    if why_ended(job):
        some.append(("Ended early by", str(job.stop_reason)))
    return [
        ("Policy", str(policy.get("path") or policy.get("hub") or "?")),
        ("Steps", f"{job.progress.step} of {job.progress.steps_total}"),
        ("Run time", run_time(job)),
        ("Reward, first to last", f"{_text(reward_first)} → {_text(reward_last)}"),
        ("KL, last", f"{_text(kl_last)} nats"),
        ("Attempts", f"{job.attempt} of {job.max_attempts}"),
        *some,
    ]


def _text(value: float | None) -> str:
    return "-" if value is None else number(value)
