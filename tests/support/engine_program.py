"""The engine as its supervisor starts it: a process, and the events it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from ppo_engine.events import Event, parse

T = TypeVar("T")


def command(root: Path, out: Path, wanted: dict[str, Any], *options: str) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    path = out / "wanted.json"
    path.write_text(json.dumps(wanted))
    fixed = ["run", str(path), "--out", str(out), "--root", str(root), "--threads", "1"]
    return [sys.executable, "-m", "ppo_engine", *fixed, *options]


def run(root: Path, out: Path, wanted: dict[str, Any], *options: str) -> tuple[int, list[Event], str]:
    done = subprocess.run(
        command(root, out, wanted, *options), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode, [parse(line) for line in done.stdout.splitlines()], done.stderr.decode()


def of_type(kind: type[T], events: list[Event]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]
