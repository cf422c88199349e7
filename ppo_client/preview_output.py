"""A reward preview in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ppo_client import output
from ppo_client.curves import number, sparkline
from ppo_engine.errands import ComponentPreview, RewardPreview, Spread


def show(console: Console, found: RewardPreview) -> None:
    """One component per line, and what speaks against them."""
    table = output.table("reward", "weight", "mean", "std", "range", "lies", "length r", "same", "repeat", "failed")
    for component in found.components:
        table.add_row(*_row(component))
    if found.total is not None:
        table.add_row("sum", "", *_spread_cells(found.total), "", "")
    console.print(table)
    several = f"; {found.groups} prompts with several responses" if found.groups else ""
    console.print(f"[dim]{found.texts} texts{several}; {found.seconds:.1f} s[/]")
    for finding in found.findings:
        text = Text(f"{finding.component or 'sum'}: ", style="bold yellow")
        console.print(text.append(output.one_line(finding.message), style="not bold default"), soft_wrap=True)
    if not found.findings:
        console.print("[green]nothing speaks against these rewards[/]")


def _row(component: ComponentPreview) -> list[str]:
    repeat = "" if component.repeat_difference is None else number(component.repeat_difference)
    weight = "shadow" if component.shadow else number(component.weight)
    return [component.name, weight, *_spread_cells(component.spread), repeat, str(component.failed or "")]


def _spread_cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return [""] * 6
    r = "" if spread.length_correlation is None else f"{spread.length_correlation:+.2f}"
    same = "" if spread.zero_spread_share is None else f"{spread.zero_spread_share:.0%}"
    lies = sparkline([float(count) for count in spread.histogram.counts], len(spread.histogram.counts))
    range_ = f"{number(spread.minimum)} to {number(spread.maximum)}"
    return [number(spread.mean), number(spread.std), range_, lies, r, same]
