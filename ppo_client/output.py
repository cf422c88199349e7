"""What the `ppo` command prints: JSON for programs, tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.views import AttemptView, CheckpointView, HealthView, JobError, JobView, MetricsView, ParentView, SampleView
from ppo_client.curves import CURVES, SHOWN, coarse, duration, number, run_time, size, sparkline
from ppo_client.plots import points
from ppo_client.progress import STATE_STYLES, state_text
from ppo_client.terminal import visible

_SPARK_WIDTH = 24


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    print(json.dumps(_plain(value), ensure_ascii=False), flush=True)  # whoever reads a pipe waits for it


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def table(*columns: str) -> Table:
    """A borderless table, the product's one look."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        # An id or a key that is cut cannot be copied.
        exact = column in {"id", "metric"}
        made.add_column(column, overflow="fold", no_wrap=exact)
    return made


def card(rows: Iterable[tuple[str, Text]]) -> Table:
    """One thing, a name and a value a line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        grid.add_row(Text(name, style="dim"), value)
    return grid


def jobs_table(jobs: Iterable[JobView]) -> Table:
    """One job per line."""
    made = table("id", "name", "state", "step", "reward", "age")
    for job in jobs:
        reward = job.latest_metrics.get(CURVES[0].key)
        progress = f"{job.progress.step}/{job.progress.steps_total}"
        age = coarse((datetime.now(UTC) - job.create_time).total_seconds())
        state = Text(job.state, style=STATE_STYLES[job.state])
        name = Text(one_line(job.name), overflow="ellipsis", no_wrap=True)  # a line for each job, also in 80 columns
        made.add_row(job.id, name, state, progress, "" if reward is None else number(reward), age)
    return made


def show_job(console: Console, job: JobView) -> None:
    """Everything worth knowing about one job."""
    console.print(card(_job_rows(job)))
    if job.error is not None:
        console.print(error_text(job.error))


def _job_rows(job: JobView) -> list[tuple[str, Text]]:
    progress = job.progress
    steps = f"{progress.step} of {progress.steps_total} steps"
    if progress.eta_seconds and not job.done:
        steps += f", eta {duration(progress.eta_seconds)}"
    rows = [
        ("id", Text(job.id)),
        ("name", Text(one_line(job.name))),
        ("state", state_text(job)),
        ("progress", Text(steps)),
        ("attempt", Text(f"{job.attempt} of {job.max_attempts}")),
        ("run time", Text(run_time(job))),
        ("last checkpoint", _step_text(job.last_checkpoint_step)),
        ("best checkpoint", _step_text(job.best_checkpoint_step)),
        ("health", Text(job.health or "-", style=_LEVEL_STYLES.get(job.health or "", ""))),
        ("parent", Text("-" if job.parent is None else _parent_text(job.parent))),
        ("labels", Text(one_line(", ".join(f"{name}={value}" for name, value in job.labels.items()) or "-"))),
    ]
    if job.microbatch_size is not None:
        rows.append(("microbatch", Text(f"{job.microbatch_size} sequences, less at once since memory ran out")))
    latest = ((curve.name, job.latest_metrics.get(curve.key), curve.unit) for curve in SHOWN)
    rows += [(name, Text(f"{number(value)} {unit}")) for name, value, unit in latest if value is not None]
    return rows


def _parent_text(parent: ParentView) -> str:
    return parent.job_id if parent.step is None else f"{parent.job_id} at step {parent.step}"


def _step_text(step: int | None) -> Text:
    return Text("-" if step is None else f"step {step}")


_TELL_ENOUGH = frozenset({"user", "config", "capacity"})
"""Categories whose messages name the field; our own stack beneath them would only hide it."""


def error_text(error: JobError) -> Text:
    """Why a job failed, what to do, and the end of its log where the cause may be found there."""
    text = Text(f"\n{error.code} ({error.category})", style="bold red")
    text.append(f": {visible(error.message)}", style="not bold")
    if error.suggestion:
        text.append(f"\n{visible(error.suggestion)}", style="not bold default")
    if error.log_tail and error.category not in _TELL_ENOUGH:
        text.append(f"\n\nend of the log:\n{visible(error.log_tail.rstrip())}", style="not bold dim")
    return text


def metrics_table(metrics: MetricsView) -> Table:
    """One metric per line: first and last value and the curve between."""
    made = table("metric", "first", "last", "")
    for key in sorted(metrics.series):
        _, values = points(metrics, key)
        if values:
            curve = Text(sparkline(values, _SPARK_WIDTH), style="cyan")
            made.add_row(key, number(values[0]), number(values[-1]), curve)
    return made


def samples_table(samples: Sequence[SampleView]) -> Table:
    """One response per line."""
    made = table("step", "score", "prompt", "response")
    for sample in samples:
        prompt, response = (Text(one_line(text)) for text in (sample.prompt, sample.response))
        step = f"{sample.step} eval" if sample.evaluation else str(sample.step)
        made.add_row(step, f"{sample.score:+.2f}", prompt, response)
    return made


def checkpoints_table(checkpoints: Sequence[CheckpointView], best_step: int | None) -> Table:
    """One checkpoint per line, the best one marked."""
    made = table("step", "score", "size", "attempt", "created")
    for checkpoint in checkpoints:
        score = "" if checkpoint.score is None else number(checkpoint.score)
        mark = " best" if checkpoint.step == best_step else ""
        created = checkpoint.create_time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        made.add_row(f"{checkpoint.step}", score + mark, size(checkpoint.size_bytes), str(checkpoint.attempt), created)
    return made


def attempts_table(attempts: Sequence[AttemptView]) -> Table:
    """One attempt per line."""
    made = table("attempt", "worker", "started", "ran", "steps", "outcome", "error")
    for attempt in attempts:
        ran = (attempt.end_time or datetime.now(UTC)) - attempt.start_time
        steps = f"{attempt.from_step} to {'?' if attempt.to_step is None else attempt.to_step}"
        started = attempt.start_time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        error = "" if attempt.error is None else f"{attempt.error.code}: {one_line(attempt.error.message)}"
        outcome = (attempt.outcome or "running") + (" (charged)" if attempt.charged else "")
        made.add_row(
            f"{attempt.attempt}", attempt.worker_id, started, duration(ran.total_seconds()), steps, outcome, Text(error)
        )
    return made


_LEVEL_STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red"}


def health_text(health: HealthView) -> Text:
    """The status, and each finding with what to do."""
    if health.status is None:
        return Text("no step yet")
    text = Text(health.status, style=_LEVEL_STYLES.get(health.status, ""))
    text.append(f" at step {health.step}", style="not bold default")
    for found in health.findings:
        text.append(f"\n\n{found.level}: {found.name}", style=_LEVEL_STYLES.get(found.level, ""))
        usual = "" if found.usual is None else f", usually {number(found.usual)}"
        text.append(f"\n{found.metric} is {number(found.value)}{usual} ({found.rule})", style="not bold default")
        text.append(f"\n{found.advice}", style="not bold default")
    return text


def one_line(text: str) -> str:
    """A text without line breaks, and without control characters that would steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def checkpoint_line(checkpoint: CheckpointView, target: str) -> str:
    """Where a checkpoint was put."""
    return f"checkpoint of step {checkpoint.step} ({size(checkpoint.size_bytes)}, verified) is in {target}"
