"""A database whose next commit ends in an error: a connection that dies during COMMIT, before or after it was made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.errors import Unavailable

T = TypeVar("T")

MADE, NOT_MADE = "made", "not made"
"""What became of the commit whose answer was an error."""

_OURS = ("api", "jobs", "worker")


class Unlucky(Database):
    """Its next transaction ends as `next` says; `struck` is where that transaction began."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.next: str | None = None
        self.struck: tuple[str, str] | None = None
        """Module and function."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        fault, self.next = self.next, None
        if fault is not None:
            self.struck = _where(sys._getframe())
        if fault == NOT_MADE:
            with super().transaction() as session:
                yield session
                raise Unavailable("lost before the commit")
        with super().transaction() as session:
            yield session
        if fault == MADE:
            raise Unavailable("lost after the commit")

    def until_it_answers(self, ask: Callable[[], T], fault: str | None) -> T:
        """What whoever asked gets in the end, who asks again where the database was away. A `fault` strikes once."""
        self.next = fault
        try:
            return ask()
        except Unavailable:
            if fault is None:
                raise
            return ask()
        finally:
            self.next = None


def _where(frame: FrameType | None) -> tuple[str, str] | None:
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.split(".", maxsplit=1)[0] in _OURS:
            return module, frame.f_code.co_qualname
        frame = frame.f_back
    return None
