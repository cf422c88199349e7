"""me, keys, quotas, audit: who may do what, and who did."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from jobs.access_views import AuditView, KeyView, QuotaView, Usage
from jobs.principal import Scope
from ppo_client import output, settings
from ppo_client.client import PPOClient
from ppo_client.commands.exits import Exit
from ppo_client.commands.options import Json, Key, Url, console
from ppo_client.curves import coarse, size
from ppo_client.errors import ClientError
from ppo_client.home import Home


class NoService(ClientError):
    """There is no database in the folder."""


keys = typer.Typer(no_args_is_help=True, help="API keys: make, list and revoke them.")
quotas = typer.Typer(no_args_is_help=True, help="How many jobs and datasets an owner may have; for administrators.")

Local = Annotated[
    Path | None,
    typer.Option(
        metavar="HOME",
        help="Not through the service but on the database in this folder of `ppo up`: for a first key, or a lost one.",
    ),
]
OwnerName = Annotated[str, typer.Argument(metavar="OWNER", help="Whose.")]


def me(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show who the service takes you for, and what is left of your quota."""
    with PPOClient(url, key) as client:
        found = client.me()
    if as_json:
        output.print_json(found)
        return
    rows = {
        "owner": found.owner,
        "scopes": ", ".join(found.scopes),
        "key": found.key_id or "none needed",
        "expires": "never" if found.expire_time is None else _time(found.expire_time),
        "running": f"{_usage(found.quota.running_jobs)} jobs",
        "queued": f"{_usage(found.quota.queued_jobs)} jobs",
        "datasets": f"{_usage(found.quota.datasets)}, with {_stored(found.quota.stored_bytes)}",
    }
    console.print(output.card((name, Text(value)) for name, value in rows.items()))


@keys.command()
def create(
    owner: Annotated[str | None, typer.Option(help="Whose key. Default: yours; another's needs `admin`.")] = None,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it allows; may be repeated. Default: read, submit and control.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.0001, help="How long it is good for. Default: always.")] = None,
    local: Local = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, once."""
    if local is not None:
        named = ["--name", name] if name else []
        scopes = [word for one in scope or [] for word in ("--scope", one.value)]
        life = [] if days is None else ["--days", str(days)]
        secret = _on_database(local, "create-key", owner or "local", *named, *scopes, *life)
        output.print_json({"key": secret}) if as_json else print(secret)
        return
    seconds = None if days is None else max(1, round(days * 86400))
    with PPOClient(url, key) as client:
        made = client.keys.create(owner=owner, name=name, scopes=scope or (), expire_seconds=seconds)
    output.print_json(made) if as_json else print(made.key)


@keys.command("ls")
def list_keys(
    owner: Annotated[str | None, typer.Option(help="Whose keys. Default: yours.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Keys of all owners; needs `admin`.")] = False,
    local: Local = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List keys, newest first. The keys themselves are not known to anybody."""
    if local is not None:
        print(_on_database(local, "list-keys"))
        return
    with PPOClient(url, key) as client:
        found = list(client.keys.list(owner=owner, everybody=everybody))
    if as_json:
        output.print_json(found)
        return
    table = output.table("id", "owner", "name", "scopes", "age", "used", "state")
    for view in found:
        used = "never" if view.last_use_time is None else f"{_age(view.last_use_time)} ago"
        scopes = ", ".join(view.scopes)
        table.add_row(view.id, Text(view.owner), Text(view.name), scopes, _age(view.create_time), used, _state(view))
    console.print(table if found else "no keys")


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, key_...")],
    local: Local = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Make a key useless, everywhere within a second."""
    if local is not None:
        print(_on_database(local, "revoke-key", key_id))
        return
    with PPOClient(url, key) as client:
        view = client.keys.revoke(key_id)
    if as_json:
        output.print_json(view)
    else:
        console.print(f"{view.id} of {view.owner} is revoked", soft_wrap=True)


@quotas.command("show")
def show_quota(owner: OwnerName, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show an owner's quota and what is used of it."""
    with PPOClient(url, key) as client:
        _print_quota(client.quota(owner), as_json=as_json)


@quotas.command("set")
def set_quota(
    owner: OwnerName,
    running: Annotated[int | None, typer.Option(min=0, help="Jobs at once. Default: the service's.")] = None,
    queued: Annotated[int | None, typer.Option(min=0, help="Jobs that wait. Default: the service's.")] = None,
    datasets: Annotated[int | None, typer.Option(min=0, help="Datasets. Default: the service's.")] = None,
    stored_bytes: Annotated[int | None, typer.Option(min=0, help="Their bytes. Default: the service's.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set all limits of an owner; one that is not given becomes the service's default."""
    with PPOClient(url, key) as client:
        quota = client.set_quota(
            owner,
            max_running_jobs=running,
            max_queued_jobs=queued,
            max_datasets=datasets,
            max_stored_bytes=stored_bytes,
        )
    _print_quota(quota, as_json=as_json)


def audit(
    owner: Annotated[str | None, typer.Option(help="Only what this owner did.")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this job, key or owner.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show who changed what, and who was kept from it; for administrators."""
    with PPOClient(url, key) as client:
        found = list(islice(client.audit(owner=owner, target=target), limit))
    if as_json:
        output.print_json(found)
        return
    table = output.table("time", "owner", "action", "target", "outcome", "from")
    for entry in found:
        table.add_row(*_audit_row(entry))
    console.print(table if found else "no entries")


def _audit_row(entry: AuditView) -> tuple[str | Text, ...]:
    by = Text(output.one_line(entry.owner))
    return _time(entry.time), by, entry.action, entry.target or "", entry.outcome, entry.address or "here"


def _on_database(folder: Path, *command: str) -> str:
    """What the operator's command prints about the service of a folder, whether that runs or not."""
    home = Home(folder)
    if not (home.root / "ppo.db").exists():
        raise NoService(f"no service has run in {home.root}")
    environment = settings.child_environment({}, {"PPO_HOME": str(home.root), "PPO_DATABASE_URL": home.database_url})
    run = [sys.executable, "-m", "jobs.admin", *command]
    # In the home folder, as `ppo up` does: a folder named `jobs` where the user stands must not shadow ours.
    done = subprocess.run(run, env=environment, cwd=home.root, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise typer.Exit(Exit.REFUSED)
    return done.stdout.rstrip("\n")


def _print_quota(quota: QuotaView, *, as_json: bool) -> None:
    if as_json:
        output.print_json(quota)
        return
    table = output.table("owner", "running", "queued", "datasets", "their size", "")
    default = "default" if quota.is_default else "set by an administrator"
    used = [_usage(usage) for usage in (quota.running_jobs, quota.queued_jobs, quota.datasets)]
    table.add_row(Text(quota.owner), *used, _stored(quota.stored_bytes), default)
    console.print(table)


def _stored(usage: Usage) -> str:
    return f"{size(usage.used)} of {'any size' if usage.limit is None else size(usage.limit)}"


def _usage(usage: Usage) -> str:
    return f"{usage.used} of {'any number' if usage.limit is None else usage.limit}"


def _state(view: KeyView) -> str:
    if view.revoke_time is not None:
        return f"revoked {_time(view.revoke_time)}"
    return "in use" if view.expire_time is None else f"until {_time(view.expire_time)}"


def _age(moment: datetime) -> str:
    return coarse((datetime.now(UTC) - moment).total_seconds())


def _time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")
