"""plan: what a run would take, before it is submitted."""

from __future__ import annotations

from typing import Annotated

import typer

from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.commands.jobs import read_spec
from ppo_client.commands.options import Json, Key, Url, console
from ppo_client.plan_page import show_plan


def plan(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="JSON file, or - for standard input.")],
    wait_seconds: Annotated[
        float, typer.Option("--timeout", min=0, max=120, help="Longest wait for a worker to look, seconds.")
    ] = 60,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Check a spec and estimate its run: errors, advice, memory, work and time. Creates nothing."""
    with PPOClient(url, key) as client:
        found = client.plan(read_spec(spec), wait_seconds=wait_seconds)
    if as_json:
        output.print_json(found)
    else:
        show_plan(console, found)
    if not found.ok:
        raise typer.Exit(Exit.INVALID)
