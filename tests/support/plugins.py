"""Installs a reward plugin for one test: a module and the dist-info by which Python finds its entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, module: str, source: str, entry_points: str) -> None:
    """Write the module and its dist-info into `folder`, and let Python import from there until the test ends."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
