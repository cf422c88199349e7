"""Which code looks at a machine's wall clock, which jumps. All else compares the database's, or a monotonic one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.source_tree import Source, sources

WALL = {"time", "time_ns", "now", "utcnow", "today", "gmtime", "localtime", "ctime", "strftime", "fromtimestamp"}
"""Functions of `time` and `datetime` that read or mean the wall clock."""

ALLOWED = {
    "jobs/ids.py": "ids sort by time; two clocks only blur the order, and `least_id` picks what is days old",
    "jobs/doctor.py": "measures how far this clock is from the database's",
    "jobs/datasets.py": "the age of files that this machine's file system dated",
    "jobs/retention.py": "the same, of folders a day old or more",
    "worker/gauges.py": "a gauge for Prometheus, which dates it itself",
    "worker/post.py": "the signature's time, which a receiver compares with its own clock",
    "ppo_engine/rewards/wire.py": "an HTTP date in Retry-After; never less than 0",
    "ppo_client/output.py": "ages that are shown",
    "ppo_client/webhooks.py": "the age of a signature, as its standard says",
    "ppo_client/commands/access.py": "ages that are shown",
    "ppo_client/commands/webhooks.py": "ages that are shown",
    "ppo_client/commands/service.py": "a time of day that is shown",
    "ppo_client/commands/doctor.py": "measures how far this clock is from the service's",
}


def wall_clock_calls(source: Source) -> Iterator[str]:
    """Calls of `time.time()`, `datetime.now()` and the like, also by a name that was imported alone."""
    alone = {
        alias.asname or alias.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
        if alias.name in WALL
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in WALL and isinstance(function.value, ast.Name):
            if function.value.id in ("time", "datetime", "date"):
                yield f"{function.value.id}.{function.attr}"
        elif isinstance(function, ast.Name) and function.id in alone:
            yield function.id


def test_only_these_modules_look_at_the_wall_clock() -> None:
    found = {source.path for source in sources() if any(wall_clock_calls(source))}
    assert found == set(ALLOWED)


def test_the_search_finds_every_way_to_look() -> None:
    ways = ["import time\ntime.time()", "from time import time_ns as t\nt()", "datetime.now(UTC)", "date.today()"]
    assert all(any(wall_clock_calls(Source("jobs/x.py", text))) for text in ways)
    assert not any(wall_clock_calls(Source("jobs/x.py", "import time\ntime.monotonic()\nevent.time()")))
