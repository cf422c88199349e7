"""`python -m worker.doctor [--json]`: all that `jobs.doctor` looks at, and the broker and the worker's settings.

Exit code 1 if something does not work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import redis
from pydantic import ValidationError
from sqlalchemy.engine import make_url

from jobs.db import Database
from jobs.diagnosis import Finding, Level, as_json, as_text, failure, good, warning, worst
from jobs.doctor import examine
from jobs.fleet import ALIVE_SECONDS
from worker.settings import WorkerSettings

_BROKER_SECONDS = 2
_BEATS_BEFORE_THE_FENCE = 3


def main(arguments: list[str] | None = None) -> int:
    """Look, and print what was found; 1 if something does not work."""
    parser = argparse.ArgumentParser(prog="python -m worker.doctor", description="Look whether everything works.")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    wants_json = parser.parse_args(arguments).json
    findings = look()
    sys.stdout.write((as_json(findings) if wants_json else as_text(findings)) + "\n")
    return 1 if worst(findings) is Level.FAILURE else 0


def look() -> list[Finding]:
    """Everything that can be seen from this machine with the settings of its environment."""
    try:
        settings = WorkerSettings()
        db = Database(settings.database_url)
    except ValidationError as error:
        return [_unusable(item["loc"], item["msg"]) for item in error.errors()]
    except ValueError as error:
        return [_unusable(("database_url",), str(error))]
    try:
        return [*examine(db, settings), look_at_broker(settings), *look_at_settings(settings)]
    finally:
        db.dispose()


def _unusable(place: tuple[int | str, ...], message: str) -> Finding:
    # Not the value: it may be a secret.
    name = f"PPO_{'_'.join(map(str, place)).upper()}" if place else "the settings"
    return failure("settings", f"{name}: {message}", "no worker starts with this: see the table in docs/operations.md")


def look_at_broker(settings: WorkerSettings) -> Finding:
    """Whether wake-ups can pass. Without them jobs still start, at the workers' next look at the database."""
    late = f"jobs start all the same, up to {settings.poll_interval_seconds:g} s later"
    if settings.embedded:
        if make_url(settings.database_url).get_backend_name() == "sqlite":
            return good("broker", "none is needed: the worker feeds itself")
        advice = "set PPO_BROKER_URL=redis://… for the relay and every worker"
        return warning("broker", "Postgres without a broker: each worker feeds only itself", advice)
    where = urlsplit(settings.broker_url.get_secret_value())
    place = f"{where.scheme}://{where.hostname}:{where.port or 6379}"
    try:
        seconds, policy = _ask_redis(settings.broker_url.get_secret_value())
    except (redis.RedisError, OSError, ValueError) as error:
        advice = f"start it, or set PPO_BROKER_URL right; until then {late}"
        return failure("broker", f"{place} does not answer ({type(error).__name__})", advice)
    text = f"{place} answers in {seconds * 1000:.1f} ms"
    if policy not in (None, "noeviction"):
        return warning("broker", f"{text}; it may evict keys ({policy})", "set its maxmemory-policy to noeviction")
    return good("broker", text)


def _ask_redis(url: str) -> tuple[float, str | None]:
    """Seconds of a round trip, and what the server does when its memory is full, if it says so."""
    limits = {"socket_timeout": _BROKER_SECONDS, "socket_connect_timeout": _BROKER_SECONDS}
    with closing(redis.Redis.from_url(url, **limits)) as client:
        client.ping()
        started = time.perf_counter()
        client.ping()
        seconds = time.perf_counter() - started
        try:
            told = client.config_get("maxmemory-policy")
        except redis.ResponseError:  # managed servers forbid it
            return seconds, None
    return seconds, str(told.get("maxmemory-policy")) if isinstance(told, dict) else None


def look_at_settings(settings: WorkerSettings) -> list[Finding]:
    """Settings that are allowed each, and work against each other."""
    found = [*_contradictions(settings)]
    return found or [good("settings", "none contradicts another")]


def _contradictions(settings: WorkerSettings) -> Iterator[Finding]:
    """Between them: every value is within its own bounds, or no worker starts."""
    if settings.heartbeat_seconds * _BEATS_BEFORE_THE_FENCE > settings.fence_seconds:
        text = f"a heartbeat every {settings.heartbeat_seconds:g} s and a fence at {settings.fence_seconds:g} s"
        yield _against(f"{text}: one lost heartbeat may end an engine", "lower PPO_HEARTBEAT_SECONDS")
    if settings.reap_seconds > settings.lease_seconds:
        text = f"expired leases are looked for every {settings.reap_seconds:g} s, later than they expire"
        yield _against(text, "lower PPO_REAP_SECONDS below PPO_LEASE_SECONDS")
    if settings.presence_seconds * 2 > ALIVE_SECONDS:
        text = f"a worker says every {settings.presence_seconds:g} s that it lives, and counts as gone after"
        yield _against(f"{text} {ALIVE_SECONDS} s", "lower PPO_PRESENCE_SECONDS to 10")
    if settings.grace_seconds >= settings.lease_seconds:
        text = f"an engine has {settings.grace_seconds:g} s to stop, longer than its lease"
        yield _against(text, "lower PPO_GRACE_SECONDS, or raise PPO_LEASE_SECONDS")
    threads, cores = settings.threads_per_engine * settings.slots, os.cpu_count() or 1
    if threads > max(cores, settings.slots):
        text = f"{settings.slots} slots with {settings.threads_per_engine} threads each share {cores} cores"
        yield _against(text, "lower PPO_ENGINE_THREADS or PPO_SLOTS")
    if shutil.which(settings.engine_command[0]) is None:
        text = f"the engine's program {settings.engine_command[0]} cannot be found"
        yield failure("settings", text, "set PPO_ENGINE_COMMAND right, or leave it out")
    if settings.reward_token_file is not None and not os.access(settings.reward_token_file, os.R_OK):
        text = f"{settings.reward_token_file} cannot be read"
        yield failure("settings", text, "set PPO_REWARD_TOKEN_FILE right, or leave it out")
    if settings.reward_token_file is not None and not settings.reward_hosts:
        yield _against("a reward token, and no host that gets it", "name the host in PPO_REWARD_HOSTS")


def _against(text: str, advice: str) -> Finding:
    return warning("settings", text, advice)


if __name__ == "__main__":
    sys.exit(main())
