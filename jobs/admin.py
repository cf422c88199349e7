"""Operator's commands: `python -m jobs.admin COMMAND`; `--help` lists them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable

from jobs.access_views import KeyView
from jobs.auth import create_key, list_keys, revoke_key
from jobs.db import Database
from jobs.diagnosis import Level, as_json, as_text, worst
from jobs.doctor import examine
from jobs.ending import release
from jobs.errors import JobsError
from jobs.migrate import migrate, revisions
from jobs.principal import WORKING_SCOPES, Scope
from jobs.retention import Retention, prune
from jobs.settings import DomainSettings
from jobs.startup import unusable


def main(arguments: list[str] | None = None) -> int:
    """Run one command on the database of the settings; 0 if it did what was asked."""
    parsed = _parser().parse_args(arguments)
    try:
        settings = DomainSettings()
        db = Database(settings.database_url)
    except ValueError as error:
        return _refuse(unusable(error))
    run: Callable[[Database, DomainSettings, argparse.Namespace], int] = parsed.run
    try:
        return run(db, settings, parsed)
    except JobsError as error:
        return _refuse(error.message)
    finally:
        db.dispose()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jobs.admin", description="Operate the service's database.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "migrate", _migrate, "create or upgrade the tables")
    _add_create_key(commands)
    _command(commands, "list-keys", _list_keys, "list API keys, without the keys")
    _command(commands, "revoke-key", _revoke_key, "make an API key useless").add_argument("key_id")
    _command(commands, "requeue", _requeue, "take a running job from its worker").add_argument("job_id")
    doctor = _command(commands, "doctor", _doctor, "look whether everything works; 1 if something does not")
    doctor.add_argument("--json", action="store_true", help="print JSON for programs")
    _add_prune(commands)
    return parser


def _add_prune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    prune = _command(commands, "prune", _prune, "remove checkpoints, logs and samples of jobs that ended long ago")
    prune.add_argument("--older-than", required=True, type=_seconds, metavar="AGE", help="30d, 12h or 4w")
    prune.add_argument("--keep-best", action="store_true", help="keep the best checkpoint of each job")
    prune.add_argument("--dry-run", action="store_true", help="print the list, remove nothing")


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", age)
    if found is None:
        raise argparse.ArgumentTypeError(f"not an age: {age}; write it as 30d, 12h or 4w")
    return float(found[1]) * {"h": 3600, "d": 86400, "w": 604800}[found[2]]


def _add_create_key(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    create = _command(commands, "create-key", _create_key, "make an API key and print it, once")
    create.add_argument("owner")
    create.add_argument("--name", default="", help="what it is for")
    scopes = [scope.value for scope in Scope]
    what = "what it allows; may be repeated; default: read, submit and control"
    create.add_argument("--scope", action="append", choices=scopes, help=what)
    create.add_argument("--days", type=float, help="how long it is good for; default: until it is revoked")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[Database, DomainSettings, argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _migrate(db: Database, _settings: DomainSettings, _arguments: argparse.Namespace) -> int:
    found = revisions(db)
    if found.current != found.newest and not found.is_behind:
        return _refuse(f"the tables are at revision {found.current}, of a newer version; this one has {found.newest}")
    migrate(db)
    return _say("the tables are up to date")


def _create_key(db: Database, settings: DomainSettings, arguments: argparse.Namespace) -> int:
    scopes = [Scope(word) for word in arguments.scope or WORKING_SCOPES]
    seconds = None if arguments.days is None else int(arguments.days * 86400)
    named = {"name": arguments.name, "scopes": scopes, "expire_seconds": seconds}
    return _say(create_key(db, arguments.owner, settings.key_pepper, **named))


def _list_keys(db: Database, _settings: DomainSettings, _arguments: argparse.Namespace) -> int:
    for key in list_keys(db):
        created = f"{key.create_time:%Y-%m-%d %H:%M}"
        _say("\t".join([key.id, key.owner, created, _state_of(key), ",".join(key.scopes), key.name]).rstrip())
    return 0


def _state_of(key: KeyView) -> str:
    if key.revoke_time is not None:
        return f"revoked {key.revoke_time:%Y-%m-%d %H:%M}"
    return "in use" if key.expire_time is None else f"until {key.expire_time:%Y-%m-%d %H:%M}"


def _revoke_key(db: Database, _settings: DomainSettings, arguments: argparse.Namespace) -> int:
    return _say("revoked") if revoke_key(db, arguments.key_id) else _refuse("there is no such key in use")


def _requeue(db: Database, _settings: DomainSettings, arguments: argparse.Namespace) -> int:
    return _say("requeued") if release(db, arguments.job_id) else _refuse("there is no such running job")


def _doctor(db: Database, settings: DomainSettings, arguments: argparse.Namespace) -> int:
    findings = examine(db, settings)
    _say(as_json(findings) if arguments.json else as_text(findings))
    return 1 if worst(findings) is Level.FAILURE else 0


def _prune(db: Database, settings: DomainSettings, arguments: argparse.Namespace) -> int:
    wanted = Retention(arguments.older_than, keep_best=arguments.keep_best, dry_run=arguments.dry_run)
    count = total_bytes = 0
    for found in prune(db, settings.runs_dir, wanted):
        size = f"{found.size_bytes / 1e6:,.1f} MB" if found.size_bytes else "-"
        _say(f"{found.job_id}\t{size}\t{found.what}")
        count, total_bytes = count + 1, total_bytes + found.size_bytes
    return _say(f"{'would remove' if wanted.dry_run else 'removed'} {count} things, {total_bytes / 1e6:,.1f} MB")


def _say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def _refuse(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
