"""Asking for a reward preview: the rewards of a spec, tried on given texts before any training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.auth import Principal
from jobs.db import Database
from jobs.errands import ask
from jobs.errors import InvalidRequest, Problem
from jobs.problems import check
from jobs.reach import Reach
from jobs.reach import reward_problems as reach_problems
from jobs.sources import reward_problems
from jobs.spec import param_problems
from ppo_engine.config import CrossCheck, reward_checks
from ppo_engine.errands import ErrandKind, PreviewRequest


def ask_preview(
    db: Database, principal: Principal, document: Any, *, roots: Sequence[Path], reach: Reach | None = None
) -> str:
    """Have texts scored; returns the errand's id.

    Raises:
        InvalidRequest: with every problem found.
        NoWorker, QuotaExceeded: see `jobs.errands.ask`.
    """
    request, problems = check(PreviewRequest, document, _rules)
    if request is not None:
        problems += reward_problems(request.rewards, roots)
        problems += [] if reach is None else reach_problems(request.rewards, reach)
    if request is None or problems:
        raise invalid_request(problems)
    body = request.model_dump(mode="json", exclude_none=True)
    return ask(db, principal, kind=ErrandKind.PREVIEW_REWARD, request=body, queue=request.queue)


def invalid_request(problems: list[Problem]) -> InvalidRequest:
    """The error that reports `problems`."""
    first = f"{problems[0].pointer or 'the request'}: {problems[0].detail}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidRequest(f"{first}{more}", problems=problems)


def _rules(request: PreviewRequest) -> list[Problem | CrossCheck]:
    return [*reward_checks(request.rewards), *param_problems(request.rewards)]
