"""What the numbers of a benchmark depend on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "fastapi", "uvicorn", "pydantic", "sqlalchemy", "psycopg")


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
