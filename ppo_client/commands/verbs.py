"""cancel, pause, resume, stop, wait, label, attempts, health: what may be asked of a job that exists."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.states import JobState
from jobs.views import JobView
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.commands.jobs import label_pair, read_spec, watch_to_end
from ppo_client.commands.options import JobId, Json, Key, Url, console


def cancel(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Cancel a job: a waiting one at once, a running one after its step."""
    with PPOClient(url, key) as client:
        view = client.cancel(job)
    _say(view, as_json, "is cancelled" if view.done else "will end after its step")


def pause(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Hold a job: a queued one at once, a running one after its step, with a checkpoint."""
    with PPOClient(url, key) as client:
        view = client.pause(job)
    _say(view, as_json, "is paused" if view.state is JobState.PAUSED else "will pause after its step")


def resume(
    job: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Let a paused job go on from its last checkpoint."""
    with PPOClient(url, key) as client:
        view = client.resume(job)
        if watch:
            watch_to_end(client, job, as_json=as_json)
        else:
            _say(view, as_json, f"is {view.state}")


def stop(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """End a running job well: it succeeds after its step, with a checkpoint."""
    with PPOClient(url, key) as client:
        view = client.stop(job)
    _say(view, as_json, f"has {view.state}" if view.done else "will end well after its step")


def retry(
    job: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Submit the spec of a job that failed or was cancelled again."""
    with PPOClient(url, key) as client:
        _follow_new(client, client.retry(job), watch, as_json)


def fork(
    job: JobId,
    from_step: Annotated[str, typer.Option("--from", metavar="STEP", help="A step, `best` or `last`.")] = "last",
    overrides: Annotated[
        str | None, typer.Option("--overrides", metavar="FILE", help="JSON merge patch of the spec, or - for stdin.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the new job. Default: the old one's.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Submit a job that goes on from a checkpoint of another one."""
    step = int(from_step) if from_step.isdecimal() else from_step
    patch = None if overrides is None else read_spec(overrides)
    with PPOClient(url, key) as client:
        _follow_new(client, client.fork(job, from_step=step, overrides=patch, name=name), watch, as_json)


def wait(
    job: JobId,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds after which to give up.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Wait for a job's end; the exit code says how it ended."""
    with PPOClient(url, key) as client:
        view = client.wait(job, timeout_seconds=timeout)
    _say(view, as_json, f"has {view.state}" if view.state is not JobState.CANCELLED else "is cancelled")
    if view.state is not JobState.SUCCEEDED:
        raise typer.Exit(Exit.JOB_FAILED)


def label(
    job: JobId,
    labels: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="Labels to set.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="A label to take away; may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A new name for the job.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Change a job's labels and its name."""
    changes: dict[str, str | None] = dict(label_pair(text) for text in labels or [])
    changes |= dict.fromkeys(remove or [])
    with PPOClient(url, key) as client:
        view = client.update(job, name=name, labels=changes or None)
    shown = ", ".join(f"{name}={value}" for name, value in view.labels.items()) or "no labels"
    _say(view, as_json, f"({view.name}) has {shown}")


def attempts(
    job: JobId,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List who held a job, how far each attempt came and why it ended."""
    with PPOClient(url, key) as client:
        pages = client.attempts(job, page_size=min(limit, 200))
        found = [attempt for attempt, _ in zip(pages, range(limit), strict=False)]
    if as_json:
        output.print_json(found)
    elif found:
        console.print(output.attempts_table(found))
    else:
        console.print("no attempts")


def health(job: JobId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Judge a run by its newest numbers, with advice."""
    with PPOClient(url, key) as client:
        view = client.health(job)
    if as_json:
        output.print_json(view)
    else:
        console.print(output.health_text(view))


def _follow_new(client: PPOClient, view: JobView, watch: bool, as_json: bool) -> None:
    if watch:
        watch_to_end(client, view.id, as_json=as_json)
        return
    parent, place = view.parent, ""
    if parent is not None and parent.step is not None:
        place = f", from step {parent.step} of {parent.job_id} with its {', '.join(parent.carried)}"
    _say(view, as_json, f"is {view.state}{place}; follow it with: ppo watch {view.id}")


def _say(view: JobView, as_json: bool, what: str) -> None:
    if as_json:
        output.print_json(view)
    else:
        console.print(f"{view.id} {what}", soft_wrap=True, markup=False)
