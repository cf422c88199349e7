"""logs, metrics, samples, checkpoints, report: what a job has made."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from jobs.views import SampleSort
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.options import JobId, Json, Key, Url, console, err_console
from ppo_client.report import write_report
from ppo_client.terminal import visible


def logs(
    job: JobId,
    tail: Annotated[int, typer.Option(min=1, help="At most so many lines.")] = 200,
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt. Default: the latest.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Print the end of a job's log."""
    with PPOClient(url, key) as client:
        view = client.logs(job, tail=tail, attempt=attempt)
    if as_json:
        output.print_json(view)
    elif view.lines:
        print(visible("\n".join(view.lines)))
    else:
        which = f"attempt {view.attempt}" if view.attempt else "this job, which has not started"
        err_console.print(f"the log of {which} is empty")


def metrics(
    job: JobId,
    metric: Annotated[list[str] | None, typer.Option("--metric", help="Only this key; may be repeated.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Print a job's metrics."""
    with PPOClient(url, key) as client:
        view = client.metrics(job, keys=metric or ())
    if as_json:
        output.print_json(view)
    else:
        console.print(output.metrics_table(view))


def samples(
    job: JobId,
    step: Annotated[int | None, typer.Option(min=0, help="Which step. Default: the latest with samples.")] = None,
    evaluation: Annotated[
        bool | None, typer.Option("--evaluation/--training", help="Only answers to the evaluation set, or only others.")
    ] = None,
    sort: Annotated[SampleSort, typer.Option(help="A minus puts the largest first: --sort=-score.")] = SampleSort.INDEX,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Print responses of a step."""
    with PPOClient(url, key) as client:
        samples = client.samples(job, step=step, evaluation=evaluation, sort=sort, page_size=min(limit, 1000))
        found = list(islice(samples, limit))
    if as_json:
        output.print_json(found)
    else:
        console.print(output.samples_table(found))


def checkpoints(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List the checkpoints that can be downloaded."""
    with PPOClient(url, key) as client:
        best, found = client.get(job).best_checkpoint_step, client.checkpoints(job)
    if as_json:
        output.print_json(found)
    elif found:
        console.print(output.checkpoints_table(found, best))
    else:
        console.print("no checkpoints")


def report(
    job: JobId,
    folder: Annotated[Path, typer.Option("--to", help="Folder for JOB.html and JOB.png.")] = Path(),
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Write a page and a picture: curves, before and after, settings."""
    with PPOClient(url, key) as client:
        written = write_report(client, job, folder)
    if as_json:
        output.print_json({"html": str(written.html), "png": str(written.png)})
    else:
        console.print(f"{written.html}\n{written.png}", soft_wrap=True)
