"""The engine with little memory: `MIB run …` is `run …` in an address space that ends MIB above what imports take."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import ppo_engine.program.run  # noqa: F401 - torch and all that a run imports, before the limit
from ppo_engine.__main__ import main

if __name__ == "__main__":
    mebibytes = int(sys.argv.pop(1))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + mebibytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.exit(main())
