"""docker-compose.yml as data, with its variables filled in."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from typing import Any

import yaml

from tests.support.source_tree import ROOT

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@cache
def generated_env() -> dict[str, str]:
    """What `sh deploy/env.sh > .env` writes."""
    printed = subprocess.run(["sh", "deploy/env.sh"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = [line for line in printed.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def fill_in(text: str, env: dict[str, str]) -> str:
    """Compose's interpolation: `${A}`, `${A:-default}`, `${A:?message}`, and `$$` for a dollar."""

    def value(match: re.Match[str]) -> str:
        name, operator, rest = match.groups()
        if env.get(name):
            return env[name]
        if operator == "-":
            return rest
        raise KeyError(f"{name}: {rest or 'not set'}")

    return _VARIABLE.sub(value, text).replace("$$", "$")


def read(path: str = "docker-compose.yml", env: dict[str, str] | None = None) -> dict[str, Any]:
    """A compose file; `env` is the generated .env unless given."""
    text = (ROOT / path).read_text("utf-8")
    return yaml.safe_load(fill_in(text, generated_env() if env is None else env))


def services() -> dict[str, dict[str, Any]]:
    """The services of docker-compose.yml by name."""
    return read()["services"]
