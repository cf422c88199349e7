"""preview: work that an engine does while the command waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import UnusableSpec
from ppo_client.commands.jobs import read_spec
from ppo_client.commands.options import Json, Key, Url, console
from ppo_client.curves import number, sparkline
from ppo_engine.errands import MAX_TEXTS, ComponentPreview, RewardPreview, Spread

Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Longest wait for the answer, seconds.")]


def preview(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="JSON file with `rewards`, or - for standard input.")],
    texts: Annotated[
        Path, typer.Option("--texts", help="JSON Lines with `prompt`, `response` and what the rewards need.")
    ],
    timeout_seconds: Timeout = 300,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Try a spec's rewards on given texts, before any training."""
    document = read_spec(spec)
    queue = document.get("resources", {}).get("queue", "default")
    with PPOClient(url, key) as client:
        found = client.preview_reward(
            document.get("rewards", []), read_texts(texts), queue=queue, timeout_seconds=timeout_seconds
        )
    if as_json:
        output.print_json(found)
    else:
        _show(found)


def read_texts(path: Path) -> list[dict[str, Any]]:
    """The texts of a file; what a line has beside prompt, response and `record` is its record too.

    Raises:
        UnusableSpec: no such file, a line that is no JSON object with both texts, or more than MAX_TEXTS lines.
    """
    try:
        content = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableSpec(f"cannot read {path}: {error}") from error
    lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if len(lines) > MAX_TEXTS:
        raise UnusableSpec(f"{path} has {len(lines)} texts; at most {MAX_TEXTS} are scored at once")
    return [_text(path, number, line) for number, line in lines]


def _text(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UnusableSpec(f"{path} line {number} is not JSON: {error}") from error
    if not isinstance(found, dict) or not {"prompt", "response"} <= set(found):
        raise UnusableSpec(f"{path} line {number} is not an object with `prompt` and `response`")
    prompt, response, record = found.pop("prompt"), found.pop("response"), found.pop("record", {})
    return {"prompt": prompt, "response": response, "record": {**found, **record}}


def _show(found: RewardPreview) -> None:
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
