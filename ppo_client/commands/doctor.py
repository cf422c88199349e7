"""doctor: is everything all right, and if not, what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.text import Text

from jobs.diagnosis import Finding, Level, failure, good, warning, worst
from ppo_client import output, settings
from ppo_client.commands.exits import Exit
from ppo_client.commands.options import Json, Key, Url, console
from ppo_client.home import Home

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
_SKEW_SECONDS = 5.0
"""The time in an answer is to the second, and the answer took a while."""

Local = Annotated[
    Path | None,
    typer.Option(
        "--local",
        metavar="HOME",
        help="Look also at the folder of a `ppo up` on this machine. Default: `var`, if a service was there.",
    ),
]
Cluster = Annotated[
    bool, typer.Option(help="Look also at database, broker and folders that this machine's PPO_ variables name.")
]


def doctor(
    local: Local = None, cluster: Cluster = False, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Look whether everything works, and say what to do if not. Exit code 5: something does not."""
    given = settings.load()
    home = _home(local, by_default=url is None and not cluster)
    address = url or (_published(home) if home is not None else None) or given.url
    findings = list(look_at_service(address, key or given.key))
    if home is not None:
        findings += _look_here({"PPO_HOME": str(home.root), "PPO_DATABASE_URL": home.database_url}, home.root)
    elif cluster:
        findings += _look_here({}, None)
    if as_json:
        output.print_json({"level": worst(findings), "findings": [vars(found) for found in findings]})
    else:
        console.print(_lines(findings), soft_wrap=True)
    if worst(findings) is Level.FAILURE:
        raise typer.Exit(Exit.OBSTACLE)


def look_at_service(url: str, key: str | None) -> Iterator[Finding]:
    """What a client sees of the service at `url`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        loopback = httpx.URL(url).host in {"127.0.0.1", "::1", "localhost"}
        with httpx.Client(base_url=url, headers=headers, timeout=5.0, trust_env=not loopback) as http:
            started = time.perf_counter()
            ready = http.get("/readyz")
            milliseconds = (time.perf_counter() - started) * 1000
            me = http.get("/v1/me")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        advice = "is it running? `ppo up` starts one here; --url or PPO_URL names another"
        yield failure("service", f"no answer from {url} ({type(error).__name__})", advice)
        return
    if ready.status_code == httpx.codes.OK:
        yield good("service", f"{url} is ready, and answers in {milliseconds:.0f} ms")
    else:
        yield failure("service", f"{url} is not ready: {_detail(ready)}", "see the findings below, and its log")
    yield from compare_clocks(ready.headers.get("Date", ""))
    if me.status_code == httpx.codes.UNAUTHORIZED:
        yield failure("access", _detail(me), "give a key with --key or PPO_KEY; an administrator makes one")
    elif me.status_code == httpx.codes.OK:
        yield good("access", f"you are {me.json().get('owner')}")


def compare_clocks(date: str) -> Iterator[Finding]:
    """What the `Date` of an answer says of the two clocks."""
    try:
        theirs = parsedate_to_datetime(date)
    except ValueError:
        return
    if theirs.tzinfo is None:
        return
    seconds = abs((datetime.now(UTC) - theirs).total_seconds())
    if seconds < _SKEW_SECONDS:
        yield good("clock", f"this machine and the service differ by less than {_SKEW_SECONDS:g} s")
    else:
        advice = "start NTP on both: receivers refuse webhooks signed at another time"
        yield warning("clock", f"this machine and the service differ by {seconds:.0f} s", advice)


def _detail(answer: httpx.Response) -> str:
    try:
        document = answer.json()
    except ValueError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    return output.one_line(str(detail)) if detail else f"status {answer.status_code}"


def _home(local: Path | None, *, by_default: bool) -> Home | None:
    """The folder to look at; one that the user names even if nothing is in it."""
    if local is not None:
        return Home(local)
    usual = Home(Path("var"))
    return usual if by_default and (usual.root / "ppo.db").exists() else None


def _published(home: Home) -> str | None:
    """Where the service of a folder says that it is."""
    try:
        return str(json.loads(home.service_file.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _look_here(changed: dict[str, str], folder: Path | None) -> list[Finding]:
    """What the operator's programs see from this machine; they hold what the client must not import."""
    command = [sys.executable, "-m", "worker.doctor", "--json"]
    # In the home folder, as `ppo up` does: a folder named `jobs` where the user stands must not shadow ours.
    where = folder if folder is not None and folder.is_dir() else None
    environment = settings.child_environment({}, changed)
    done = subprocess.run(command, env=environment, cwd=where, capture_output=True, text=True, check=False)
    try:
        return [_finding(item) for item in json.loads(done.stdout)["findings"]]
    except (ValueError, KeyError):
        end = output.one_line(done.stderr[-300:])
        return [failure("machine", f"the look at this machine failed: {end}", "is the extra `worker` installed?")]


def _finding(item: dict[str, Any]) -> Finding:
    return Finding(item["check"], Level(item["level"]), item["text"], item["advice"])


def _lines(findings: list[Finding]) -> Text:
    text = Text()
    for number, found in enumerate(findings):
        text.append("\n" if number else "")
        text.append(f"{found.level:<8} ", style=_STYLES[found.level])
        text.append(f"{found.check:<11} ", style="dim")
        text.append(found.text)
        if found.advice:
            text.append(f"\n{'':21}{found.advice}", style="italic")
    return text
