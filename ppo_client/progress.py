"""Shows a running job: a live board in a terminal, one plain line per step anywhere else."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobs.states import JobState
from jobs.views import ROLLED_BACK, JobEventView, JobView
from ppo_client.curves import (
    SHOWN,
    Curve,
    duration,
    headline,
    is_good,
    number,
    run_time,
    sparkline,
    trend,
    why_ended,
)
from ppo_client.terminal import visible
from ppo_client.updates import End, Happened, Snapshot, Step, Update

STATE_STYLES = {
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.PAUSED: "yellow",
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "magenta",
}


WARNINGS = frozenset({"guard", ROLLED_BACK, "paused"})
"""Types of events that a person should look at."""


class Display(Protocol):
    """Something that shows a job while it runs."""

    wants_refresh: bool

    def show(self, update: Update) -> None:
        """Take in what the job says."""

    def refresh(self, job: JobView) -> None:
        """Take in the job as it is now: phase, progress, time left."""

    def close(self) -> None:
        """Leave the terminal tidy."""


def display_for(console: Console) -> Display:
    """A board where the console is a terminal that can be redrawn, else plain lines."""
    return Board(console) if console.is_terminal and not console.is_dumb_terminal else PlainLines(console)


def state_text(job: JobView) -> Text:
    """The state, and what the job does or waits for."""
    text = Text(job.state + why_ended(job), style=STATE_STYLES[job.state])
    if job.state is JobState.RUNNING and job.phase:
        text.append(f" · {job.phase}", style="dim")
    if job.cancel_request_time and not job.done:
        text.append(" · cancelling", style="magenta")
    elif job.state is JobState.RUNNING and (job.stop_request_time or job.pause_request_time):
        text.append(" · stopping" if job.stop_request_time else " · pausing", style="magenta")
    if job.state is JobState.PAUSED and "resume" in job.allowed_actions:
        text.append(f" · go on with: ppo resume {job.id}", style="dim")
    if job.queue and job.state is JobState.QUEUED:
        text.append(f" · {job.queue.reason} (position {job.queue.position})", style="dim")
    return text


class PlainLines:
    """One line per step and per event."""

    wants_refresh = False

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = "?"
        self._job_id = ""

    def show(self, update: Update) -> None:
        match update:
            case Snapshot():
                self._total, self._job_id = str(update.job.progress.steps_total), update.job.id
                self._show_queue(update.job)
            case Happened():
                hint = f" (go on with: ppo resume {self._job_id})" if update.event.type == "paused" else ""
                self._line(event_line(update.event) + hint)
            case Step():
                self._line(f"step {update.step}/{self._total}  {headline(update.metrics)}")
            case End():
                self._line(f"{update.job.state}{why_ended(update.job)} after {run_time(update.job)}")

    def refresh(self, job: JobView) -> None:
        """Lines once printed stay as they are."""

    def close(self) -> None:
        """Nothing to tidy."""

    def _show_queue(self, job: JobView) -> None:
        if job.queue is not None and job.state is JobState.QUEUED:
            self._line(state_text(job).plain)

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def event_line(event: JobEventView) -> str:
    """An event on one line, with the local time."""
    clock = event.time.astimezone().strftime("%H:%M:%S")
    return f"{clock}  {visible(event.message or event.type)}"


class Board:
    """Progress bar and curves, redrawn in place; what happened last stays below."""

    wants_refresh = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._job: JobView | None = None
        self._series: dict[str, dict[int, float]] = {curve.key: {} for curve in SHOWN}
        self._last_events: deque[Text] = deque(maxlen=3)
        self._live = Live(self._render(), console=console, auto_refresh=False)
        self._live.start()

    def show(self, update: Update) -> None:
        with self._lock:
            match update:
                case Snapshot() | End():
                    self._job = update.job
                case Happened():
                    self._add_event(update.event)
                case Step():
                    self._add_step(update)
            self._draw()

    def refresh(self, job: JobView) -> None:
        with self._lock:
            self._job = job
            self._draw()

    def close(self) -> None:
        self._live.stop()

    def _add_event(self, event: JobEventView) -> None:
        style = "yellow" if event.type in WARNINGS else "dim"
        self._last_events.append(Text(event_line(event), style=style, overflow="ellipsis", no_wrap=True))
        for key, values in self._series.items():
            self._series[key] = {step: value for step, value in values.items() if event.place_after(step) == step}

    def _add_step(self, update: Step) -> None:
        for key, values in self._series.items():
            if key in update.metrics:
                values[update.step] = update.metrics[key]

    def _draw(self) -> None:
        self._live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        if self._job is None:
            return Text("waiting for the service ...", style="dim")
        parts: list[RenderableType] = [_title(self._job), _bar(self._job)]
        if any(self._series.values()):
            parts.append(self._curves())
        return Group(*parts, *self._last_events)

    def _curves(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        width = max(8, min(40, self._console.width - 46))
        for curve in SHOWN:
            if values := self._series[curve.key]:
                table.add_row(*_curve_row(curve, list(values.values()), width))
        return table


def _title(job: JobView) -> Text:
    title = Text(visible(job.name), style="bold")
    title.append(f"  {job.id}  ", style="dim")
    title.append_text(state_text(job))
    if job.attempt > 1:
        title.append(f" · attempt {job.attempt} of {job.max_attempts}", style="dim")
    return title


def _bar(job: JobView) -> Table:
    progress = job.progress
    grid = Table.grid(padding=(0, 1))
    remaining = f"eta {duration(progress.eta_seconds)}" if progress.eta_seconds and not job.done else ""
    bar = ProgressBar(total=max(1, progress.steps_total), completed=progress.step, width=36)
    grid.add_row(bar, f"{progress.step}/{progress.steps_total} steps", Text(remaining, style="cyan"))
    return grid


def _curve_row(curve: Curve, values: list[float], width: int) -> tuple[RenderableType, ...]:
    direction = trend(values)
    style = {True: "green", False: "red", None: "dim"}[is_good(curve, direction)]
    arrow = Text({1: "↑", -1: "↓", 0: "·"}[direction], style=style)
    line = Text(sparkline(values, width), style="cyan")
    value = Text(number(values[-1]), justify="right")
    return curve.name, value, arrow, line, Text(curve.unit, style="dim")
