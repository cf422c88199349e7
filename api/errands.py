"""Waiting for an errand, the same for both doors: without a thread or a connection between two looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from api.context import Context
from api.threads import in_thread
from jobs.auth import Principal
from jobs.errand_views import ErrandView
from jobs.errands import errand
from jobs.errors import ErrandFailed, ErrandRefused, Problem
from ppo_engine.errors import Category

MAX_WAIT_SECONDS = 120.0
DEFAULT_WAIT_SECONDS = 60.0
_FIRST_SECONDS, _SLOWEST_SECONDS = 0.05, 0.5
_REFUSALS = frozenset({Category.USER, Category.DATA, Category.REWARD, Category.CONFIG})
"""Categories of errors that asking again does not mend."""


async def asked(context: Context, caller: Principal, ask: Callable[[], str], wait_seconds: float) -> ErrandView:
    """Have an errand done and wait for its answer; a view that is not done where that takes longer.

    Raises:
        ErrandRefused: it cannot be done as asked.
        ErrandFailed: it could not be done.
    """
    view = await waited(context, caller, await in_thread(ask), wait_seconds)
    error = view.error
    if error is None:
        return view
    problem = Problem(pointer="", code=error.code, detail=error.message)
    kind = ErrandRefused if error.category in _REFUSALS else ErrandFailed
    raise kind(f"{error.message} {error.suggestion}".strip(), problems=[problem])


async def waited(context: Context, caller: Principal, errand_id: str, wait_seconds: float) -> ErrandView:
    """An errand once it has ended, or as it is after `wait_seconds` or when the server stops.

    Raises:
        JobNotFound: no such errand.
    """
    deadline = time.monotonic() + wait_seconds
    pause = _FIRST_SECONDS
    while True:
        view = await in_thread(errand, context.db, caller, errand_id)
        left = deadline - time.monotonic()
        if view.done or left <= 0 or context.stopping.is_set():
            return view
        with suppress(TimeoutError):
            await asyncio.wait_for(context.stopping.wait(), min(pause, left))
        pause = min(pause * 1.5, _SLOWEST_SECONDS)
