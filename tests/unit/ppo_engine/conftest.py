"""Fixtures of several files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FACTORY = """
from .tasks import Config, Echo
from . import evil
DATASETS = {"echo": (Echo, Config), "evil": (evil.Evil, Config), "algebra": (evil.Algebra, Config)}
"""
TASKS = """
from abc import ABC
from dataclasses import dataclass
@dataclass
class Config:
    size: int = 5
class Base(ABC):
    def __init__(self, config):
        self.config = config
    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.25 * (entry["answer"] in answer)
class Echo(Base):
    pass
"""
EVIL = """
from .tasks import Base
from .parse import Algebra
class Evil(Base):
    def score_answer(self, answer, entry):
        return float(eval(answer) == eval(entry["answer"]))
"""
PARSE = """
from .tasks import Base
def solve(text):
    import sympy.parsing as parsing
    return parsing.read(text)
class Algebra(Base):
    def score_answer(self, answer, entry):
        return float(solve(answer))
"""


@pytest.fixture
def reasoning_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the interface of reasoning-gym and three tasks, in place of the extra."""
    folder = tmp_path / "reasoning" / "reasoning_gym"
    folder.mkdir(parents=True)
    sources = {"__init__": "from . import factory", "factory": FACTORY, "tasks": TASKS, "evil": EVIL, "parse": PARSE}
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder.parent)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "reasoning_gym":
            del sys.modules[name]
