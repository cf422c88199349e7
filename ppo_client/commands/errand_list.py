"""errands, errands show, errands cancel: what the service was asked to do at once, and how it goes."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from jobs.errand_views import ErrandState, ErrandView
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.options import Json, Key, Url, console
from ppo_engine.errands import ErrandKind

app = typer.Typer(
    help="Previews, plans, generations and merges: list yours, look at one, cancel one.", invoke_without_command=True
)

ErrandId = Annotated[str, typer.Argument(metavar="ERRAND", help="The errand's id, errand_...")]


@app.callback()
def list_errands(
    context: typer.Context,
    kind: Annotated[ErrandKind | None, typer.Option("--kind", help="Only this kind.")] = None,
    state: Annotated[ErrandState | None, typer.Option("--state", help="Only those in this state.")] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only those about this job.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List your errands, newest first: those under way, and those of the last hour."""
    if context.invoked_subcommand is not None:
        return
    with PPOClient(url, key) as client:
        pages = client.errands(kind=kind, state=state, job_id=job, page_size=min(limit, 200))
        found = list(islice(pages, limit))
    if as_json:
        output.print_json(found)
    elif found:
        table = output.table("id", "kind", "state", "job", "asked", "why it failed")
        for errand in found:
            asked = f"{errand.create_time:%Y-%m-%d %H:%M:%S}"
            table.add_row(errand.id, errand.kind, _state(errand), errand.job_id or "", asked, Text(_why(errand)))
        console.print(table)
    else:
        console.print("no errands")


@app.command()
def show(errand: ErrandId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show an errand; with --json its answer too."""
    with PPOClient(url, key) as client:
        _print(client.errand(errand), as_json=as_json)


@app.command()
def cancel(errand: ErrandId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Cancel an errand; repeating it is harmless."""
    with PPOClient(url, key) as client:
        _print(client.cancel_errand(errand), as_json=as_json)


def _print(view: ErrandView, *, as_json: bool) -> None:
    if as_json:
        output.print_json(view)
    else:
        why = _why(view)
        console.print(f"{view.id} {view.kind}: {_state(view)}{why and ': ' + why}", soft_wrap=True, markup=False)


def _state(view: ErrandView) -> str:
    return "cancelling" if view.cancel_request_time is not None and not view.done else view.state


def _why(view: ErrandView) -> str:
    if view.error is None or view.state is not ErrandState.FAILED:
        return ""
    return output.one_line(view.error.message)
