"""Answers to the same prompts, side by side in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ppo_client.curves import number
from ppo_client.output import one_line
from ppo_engine.errands import GeneratedBy, GeneratedResponse, Generation


def show(console: Console, found: Generation) -> None:
    """One column for each of the weights, one row for each response, under its prompt."""
    for place, prompt in enumerate(found.prompts):
        console.print(Text(one_line(prompt), style="bold"), soft_wrap=True)
        console.print(_table(found, place))
        console.print()
    summary = "   ".join(_summary(by) for by in found.answers)
    console.print(f"[dim]{summary}[/]", soft_wrap=True)


def _table(found: Generation, place: int) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for by in found.answers:
        made.add_column(title(by), ratio=1, overflow="fold")
    columns = [[response for response in by.responses if response.prompt == place] for by in found.answers]
    for row in zip(*columns, strict=True):
        made.add_row(*map(_cell, row))
    return made


def title(by: GeneratedBy) -> str:
    """What a set of weights is called: `base`, `step 40`, `best (step 40)`."""
    if by.step is None:
        return by.name
    return f"step {by.step}" if by.name == str(by.step) else f"{by.name} (step {by.step})"


def _cell(response: GeneratedResponse) -> Text:
    text = Text(one_line(response.response) + ("" if response.finished else " …"))
    if response.score is not None:
        text = Text(f"{response.score:+.2f}  ", style="cyan").append(text)
    for name, reason in response.errors.items():
        text.append(f"\n{name}: {one_line(reason)}", style="yellow")
    return text


def _summary(by: GeneratedBy) -> str:
    score = "" if by.mean_score is None else f"mean score {number(by.mean_score)}, "
    return f"{title(by)}: {score}{by.mean_tokens:.0f} tokens, {by.seconds:.1f} s"
