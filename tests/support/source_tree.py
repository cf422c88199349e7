"""The repository's own files, for tests that read source code."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "worker", "jobs", "ppo_engine", "ppo_client")
FACE = frozenset({"config", "events", "stats", "errors", "rundir", "sources", "folders", "errands", "plans"})
"""Modules of ppo_engine that other rooms may import; torch-free."""

_GENERATED = "api/rpc/v1/"


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository's root, with `/`, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def room(self) -> str:
        return PurePosixPath(self.path).parts[0]


@cache
def repository_files() -> tuple[str, ...]:
    """Every file that is tracked, or would be: new files count too, ignored ones do not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return tuple(sorted(path for path in listed.stdout.splitlines() if (ROOT / path).is_file()))


def sources(rooms: Iterable[str] = ROOMS) -> list[Source]:
    """Hand-written Python files of some top-level folders."""
    wanted = tuple(f"{room}/" for room in rooms)
    paths = [path for path in repository_files() if path.startswith(wanted) and path.endswith(".py")]
    return [Source(path, (ROOT / path).read_text("utf-8")) for path in paths if not path.startswith(_GENERATED)]
