"""A plan as a page for people: the verdict, what is wrong, what the run is, what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.errors import Problem
from jobs.plan_views import Eta, PlanView, Work
from ppo_client.curves import duration, number, size
from ppo_client.output import one_line, table
from ppo_engine.plans import DiskFacts, MemoryFacts, ModelFacts, PromptFacts, RewardTrial

_NAME_WIDTH = 12

Row = tuple[str, Text | str]


def show_plan(console: Console, plan: PlanView) -> None:
    """The whole page."""
    _show_problems(console, plan.errors, "error", "bold red")
    _show_problems(console, plan.warnings, "warning", "yellow")
    rows = list(_rows(plan))
    if rows:
        console.print(_grid(rows))
    if plan.rewards:
        console.print()
        console.print(_rewards(plan.rewards))
    if plan.memory is not None:
        console.print()
        console.print(_memory(plan.memory))
        console.print(_peak(plan.memory), soft_wrap=True)
    if plan.not_probed:
        console.print(Text(f"\nmodels, prompts and rewards were not looked at: {one_line(plan.not_probed)}", "yellow"))
    console.print(_verdict(plan), soft_wrap=True)


def _verdict(plan: PlanView) -> Text:
    if not plan.ok:
        return Text(f"\nnot ready: {_counted(len(plan.errors), 'error')}", style="bold red")
    notes = f", {_counted(len(plan.warnings), 'warning')}" if plan.warnings else ""
    return Text("\nready to submit", style="bold green").append(notes, style="not bold yellow")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show_problems(console: Console, problems: Sequence[Problem], kind: str, style: str) -> None:
    for problem in problems:
        line = Text(f"{kind} ", style=style)
        line.append(f"{one_line(problem.pointer) or '/'}  ", style="not bold cyan")
        line.append(one_line(problem.detail), style="not bold default")
        console.print(line, soft_wrap=True)
        if problem.suggestion and problem.suggestion not in problem.detail:
            console.print(Text(f"  {one_line(problem.suggestion)}", style="dim"), soft_wrap=True)
    if problems:
        console.print()


def _grid(rows: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=_NAME_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return grid


def _rows(plan: PlanView) -> Iterator[Row]:
    if plan.model is not None:
        yield "model", _model(plan.model)
    if plan.prompts is not None:
        yield "prompts", _prompts(plan.prompts)
    if plan.evaluation_prompts is not None:
        yield "evaluation", _prompts(plan.evaluation_prompts)
    if plan.work is not None:
        yield from _work(plan.work)
    if plan.disk is not None:
        yield "disk", _disk(plan.disk)
    if plan.eta is not None:
        yield "time", _eta(plan.eta)


def _model(model: ModelFacts) -> str:
    share = model.trainable_parameters / max(1, model.parameters)
    trained = "all" if 0.99 < share < 1.01 else f"{count(model.trainable_parameters)} ({share:.1%})"
    reads = "" if model.positions is None else f", reads {model.positions:,} tokens"
    return (
        f"{one_line(model.name)}: {model.architecture}, {count(model.parameters)} parameters, {trained} trained{reads}"
    )


def _prompts(prompts: PromptFacts) -> str:
    text = f"{prompts.count:,}"
    if prompts.tokens is not None:
        tokens = prompts.tokens
        text += f", {tokens.minimum} to {tokens.maximum} tokens (median {tokens.p50}, 95 % up to {tokens.p95})"
    left = {"too long": prompts.too_long, "empty": prompts.empty, "more than once": prompts.duplicates}
    notes = [f"{number:,} {what}" for what, number in left.items() if number]
    if prompts.tokenised < prompts.count:
        notes.append(f"{prompts.tokenised:,} tokenised")
    return "; ".join([text, *notes])


def _work(work: Work) -> Iterator[Row]:
    passes = work.passes_over_prompts
    drawn = "" if passes is None else f", each prompt {number(passes)} times"
    yield "work", f"{work.steps:,} steps, {work.samples:,} responses{drawn}, {work.optimizer_steps:,} optimizer steps"
    read = "" if work.prompt_tokens is None else f"{count(work.prompt_tokens)} of prompts, "
    generated, trained = count(work.response_tokens_max), count(work.trained_tokens_max)
    yield "tokens", f"{read}at most {generated} generated, {trained} trained on"


def _disk(disk: DiskFacts) -> str:
    free = "" if disk.free_bytes is None else f"; {size(disk.free_bytes)} free"
    return f"{_counted(disk.kept, 'checkpoint')} of {size(disk.checkpoint_bytes)}: {size(disk.needed_bytes)}{free}"


def _eta(eta: Eta) -> str:
    if eta.low_seconds is None or eta.high_seconds is None:
        return one_line(eta.basis)
    runs = _counted(eta.jobs, "earlier run")
    return f"{duration(eta.low_seconds)} to {duration(eta.high_seconds)}, from {runs} of this model"


def _rewards(rewards: Sequence[RewardTrial]) -> Table:
    made = table("reward", "kind", "weight", "tried on", "lowest", "mean", "highest", "")
    for trial in rewards:
        values = ("" if value is None else number(value) for value in (trial.minimum, trial.mean, trial.maximum))
        tried = _counted(trial.tried, "text") if trial.tried else "not tried"
        note = "shadow" if trial.shadow and not trial.note else one_line(trial.note)
        made.add_row(one_line(trial.name), trial.kind, number(trial.weight), tried, *values, Text(note, style="dim"))
    return made


def _memory(memory: MemoryFacts) -> Table:
    parts = memory.parts.model_dump()
    made = table("memory", "")
    for name, value in sorted(parts.items(), key=lambda part: -part[1]):
        if value:
            made.add_row(name.removesuffix("_bytes").replace("_", " "), Text(size(value), justify="right"))
    return made


def _peak(memory: MemoryFacts) -> Text:
    each = f" each of {memory.processes} processes" if memory.processes > 1 else ""
    total = f"peak, about {size(memory.peak_bytes)}{each} in phase {memory.phase}, of {size(memory.device_bytes)}"
    return Text(f"{total} ({memory.device}, {memory.precision})", style="bold" if memory.fits else "bold red")


def count(value: float) -> str:
    """A large number in about four characters: 950, 12.3k, 134M, 7.2B."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
