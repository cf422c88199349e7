"""What came of a replay of steps, in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ppo_client import output
from ppo_engine.verification import StepVerification, Verification


def show(console: Console, found: Verification) -> None:
    """A line for each step and checkpoint, what differs first, and the verdict."""
    table = output.table("what", "compared", "different", "first difference")
    first, again = ("first replay", "second") if found.twice else ("recorded", "replayed")
    for step in found.steps:
        compared = f"{step.scalars} numbers, {step.samples} samples"
        differing = _count(step.scalars_differing + step.samples_differing)
        table.add_row(f"step {step.step}", compared, differing, _first(step, first, again))
    for kept in found.checkpoints:
        names = [difference.name for difference in kept.differences] + kept.state
        differing = _count(kept.tensors_differing + len(kept.state))
        table.add_row(
            f"checkpoint {kept.step}", f"{kept.tensors} tensors", differing, output.one_line(names[0]) if names else ""
        )
    console.print(table)
    if found.keys:
        console.print(_keys(found))
    for left in found.not_compared:
        console.print(Text(f"not compared: {left.what}: {left.reason}", style="dim"), soft_wrap=True)
    for note in found.notes:
        console.print(Text("note: ", style="yellow").append(output.one_line(note.message)), soft_wrap=True)
    console.print(
        Text(output.one_line(found.verdict), style="green" if found.identical else "bold red"),
        soft_wrap=True,
    )
    console.print(f"[dim]from the checkpoint of step {found.from_step}; {found.device}, {found.seconds:.1f} s[/]")


def _count(differing: int) -> Text:
    return Text(str(differing), style="bold red") if differing else Text("0", style="green")


def _first(step: StepVerification, first: str, again: str) -> Text:
    if step.differences:
        one = step.differences[0]
        return Text(f"{one.key}: {first} {one.recorded!r}, {again} {one.replayed!r}")
    if step.sample_differences:
        sample = step.sample_differences[0]
        values = f"{first} {sample.recorded}, {again} {sample.replayed}"
        return Text(output.one_line(f"sample {sample.index}, {sample.field}: {values}"))
    return Text("")


def _keys(found: Verification) -> Table:
    """Every number that differs, over all steps."""
    table = output.table("metric", "from step", "steps", "largest difference", "relative")
    for key in found.keys:
        absolute, relative = ("" if value is None else f"{value:.3g}" for value in (key.max_absolute, key.max_relative))
        table.add_row(key.key, str(key.first_step), str(key.steps), absolute, relative)
    return table
