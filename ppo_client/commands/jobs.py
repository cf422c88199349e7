"""submit, ls, show, watch: a job from its start to its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.states import JobState
from jobs.views import JobView
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit, UnusableSpec
from ppo_client.commands.options import JobId, Json, Key, Url, console, err_console
from ppo_client.follow import follow

State = Annotated[list[JobState] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")]
Label = Annotated[list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Only jobs with this label.")]


def submit(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="JSON file, or - for standard input.")],
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Submit a job."""
    with PPOClient(url, key) as client:
        job = client.submit(read_spec(spec))
        if watch:
            watch_to_end(client, job.id, as_json=as_json)
        elif as_json:
            output.print_json(job)
        else:
            console.print(f"[bold]{job.id}[/] is {job.state}; follow it with: ppo watch {job.id}", soft_wrap=True)


def list_jobs(
    state: State = None,
    label: Label = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    labels = dict(label_pair(text) for text in label or [])
    with PPOClient(url, key) as client:
        jobs = client.list(states=state or (), labels=labels, page_size=min(limit, 200))
        found = [job for job, _ in zip(jobs, range(limit), strict=False)]
    if as_json:
        output.print_json(found)
    elif found:
        console.print(output.jobs_table(found))
    else:
        console.print("no jobs")


def show(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show one job."""
    with PPOClient(url, key) as client:
        view = client.get(job)
    if as_json:
        output.print_json(view)
    else:
        output.show_job(console, view)


def watch(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Follow a job to its end. Ctrl-C leaves it running."""
    with PPOClient(url, key) as client:
        watch_to_end(client, job, as_json=as_json)


def watch_to_end(client: PPOClient, job_id: str, *, as_json: bool) -> None:
    """Show a job until it has ended, and leave with an exit code that says how."""
    try:
        job = _follow_json(client, job_id) if as_json else follow(client, job_id, console)
    except KeyboardInterrupt:
        err_console.print(f"\nThe job goes on. See it again: ppo watch {job_id}; end it: ppo cancel {job_id}")
        raise typer.Exit(Exit.INTERRUPTED) from None
    if job.state is not JobState.SUCCEEDED:
        raise typer.Exit(Exit.JOB_FAILED)
    if not as_json:
        console.print(f"[dim]next:[/] ppo report {job.id}   ppo download {job.id}", soft_wrap=True)


def read_spec(source: str) -> dict[str, Any]:
    """The JSON object in a file, or on standard input for `-`.

    Raises:
        UnusableSpec: no such file, or not one JSON object.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        spec = json.loads(text, parse_constant=_no_number)
    except OSError as error:
        raise UnusableSpec(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise UnusableSpec(f"{source} is not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise UnusableSpec(f"{source} must hold a JSON object, not a {type(spec).__name__}")
    return spec


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number that JSON knows")


def label_pair(text: str) -> tuple[str, str]:
    """The label that `NAME=VALUE` means; raises typer.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"`{text}` is not NAME=VALUE", param_hint="label")
    return name, value


def _follow_json(client: PPOClient, job_id: str) -> JobView:
    for update in client.watch(job_id):
        output.print_json({type(update).__name__.lower(): update})
    return client.get(job_id)
