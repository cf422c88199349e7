"""`python -m api`: the front door as a process. Exit code 2 means that it refused to start; the last line says why."""

from __future__ import annotations

import asyncio
import resource
import sys

from api.server import StartRefused, check_start, serve
from api.settings import ApiSettings
from jobs import log
from jobs.db import Database
from jobs.errors import Unavailable
from jobs.startup import unusable

_REFUSED = 2
_OPEN_FILES = 65_536


def main() -> int:
    """Run until SIGTERM; 0 after an orderly end."""
    log.configure("api")
    _allow_many_connections()
    try:
        settings = ApiSettings()
        db = Database(settings.database_url)
    except ValueError as error:
        return _refuse(unusable(error))
    try:
        check_start(settings, db)
        asyncio.run(serve(settings, db))
    except (StartRefused, Unavailable) as error:
        return _refuse(str(error))
    finally:
        db.dispose()
    return 0


def _allow_many_connections() -> None:
    """Each is an open file, and many systems give a process 1024 unless it asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse(reason: str) -> int:
    sys.stderr.write(f"python -m api: {reason}\n")
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
