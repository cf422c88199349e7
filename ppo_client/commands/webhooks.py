"""webhooks add, ls, set, rm, test, rotate, deliveries, redeliver: who is told what happens to jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from jobs.webhook_views import DeliveryView
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.commands.options import Json, Key, Url, console, err_console
from ppo_client.curves import coarse

app = typer.Typer(no_args_is_help=True, help="Endpoints that are told what happens to jobs.")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The endpoint's id, wh_...")]
Events = Annotated[
    list[str] | None, typer.Option("--event", help="Which events, e.g. job.failed, or *; may be repeated.")
]
AllJobs = Annotated[
    bool | None, typer.Option("--all-jobs/--named-only", help="All your jobs, or those whose spec names it.")
]
Description = Annotated[str | None, typer.Option("--description", help="For people.")]


@app.command()
def add(
    target: Annotated[str, typer.Argument(metavar="URL", help="Where to post.")],
    event: Events = None,
    description: Description = None,
    all_jobs: AllJobs = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Add an endpoint and print its signing secret, once."""
    with PPOClient(url, key) as client:
        made = client.webhooks.add(target, **_given(event_types=event, description=description, all_jobs=all_jobs))
    if as_json:
        output.print_json(made)
    else:
        console.print(f"[bold]{made.id}[/] is told: {', '.join(made.event_types)}", soft_wrap=True)
        console.print(f"secret, shown only now: {made.secret}", soft_wrap=True)


@app.command("ls")
def list_webhooks(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List your endpoints, newest first."""
    with PPOClient(url, key) as client:
        found = list(client.webhooks.list())
    if as_json:
        output.print_json(found)
        return
    table = output.table("id", "url", "events", "jobs", "state")
    for hook in found:
        failing = f"failing since {hook.failing_since:%Y-%m-%d %H:%M}" if hook.failing_since else "on"
        status = failing if hook.enabled else f"off{': ' + hook.disable_reason if hook.disable_reason else ''}"
        events, jobs = ", ".join(hook.event_types), "all" if hook.all_jobs else "named"
        table.add_row(hook.id, Text(output.one_line(hook.url)), events, jobs, Text(status))
    console.print(table if found else "no webhooks")


@app.command("set")
def change(
    webhook: WebhookId,
    target: Annotated[str | None, typer.Option("--to", metavar="URL", help="A new address.")] = None,
    event: Events = None,
    all_jobs: AllJobs = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Send messages, or none.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Change an endpoint; what is not given stays."""
    changes = _given(url=target, event_types=event, all_jobs=all_jobs, enabled=enabled)
    with PPOClient(url, key) as client:
        hook = client.webhooks.update(webhook, **changes)
    if as_json:
        output.print_json(hook)
    else:
        console.print(f"{hook.id} is {'on' if hook.enabled else 'off'}: {hook.url}", soft_wrap=True)


@app.command("rm")
def remove(webhook: WebhookId, url: Url = None, key: Key = None) -> None:
    """Remove an endpoint, what still waits for it, and its log."""
    with PPOClient(url, key) as client:
        client.webhooks.remove(webhook)


@app.command("test")
def send_test(webhook: WebhookId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Send a test message and show how it went."""
    with PPOClient(url, key) as client:
        delivery = client.webhooks.test(webhook)
    if delivery is None:
        err_console.print("the message is on its way, but was not tried yet: is a relay running?")
        raise typer.Exit(Exit.UNREACHABLE)
    if as_json:
        output.print_json(delivery)
    else:
        console.print(_deliveries_table([delivery]))
    if delivery.error is not None:
        raise typer.Exit(Exit.OBSTACLE)


@app.command()
def rotate(webhook: WebhookId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Make a new signing secret and print it, once. The one before signs for a day more."""
    with PPOClient(url, key) as client:
        made = client.webhooks.rotate_secret(webhook)
    if as_json:
        output.print_json(made)
    else:
        console.print(f"secret, shown only now: {made.secret}", soft_wrap=True)


@app.command()
def deliveries(
    webhook: WebhookId,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show what was sent, and what the receiver answered."""
    with PPOClient(url, key) as client:
        found = [item for item, _ in zip(client.webhooks.deliveries(webhook), range(limit), strict=False)]
    if as_json:
        output.print_json(found)
    else:
        console.print(_deliveries_table(found) if found else "no deliveries")


@app.command()
def redeliver(
    webhook: WebhookId,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Id of a delivery, dlv_...")],
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Send the message of a delivery again, under the same id."""
    with PPOClient(url, key) as client:
        message_id = client.webhooks.redeliver(webhook, delivery)
    if as_json:
        output.print_json({"message_id": message_id})
    else:
        console.print(f"{message_id} is on its way")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _deliveries_table(found: list[DeliveryView]) -> Table:
    table = output.table("id", "age", "event", "try", "status", "took", "answer")
    for item in found:
        status = str(item.status) if item.status is not None else "-"
        answer = Text(output.one_line(item.answer[:60] if item.error is None else item.error))
        age = coarse((datetime.now(UTC) - item.time).total_seconds())
        table.add_row(item.id, age, item.type, str(item.attempt), status, f"{item.duration_seconds:.2f}s", answer)
    return table
