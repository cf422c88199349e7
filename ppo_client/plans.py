"""Plan before spending: what a run would take, and what stands in its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from jobs.plan_views import PlanView
from ppo_client.transport import Transport

_MARGIN_SECONDS = 15.0
"""How much later than it promised an answer may come."""


class Plans:
    """The part of `PPOClient` that asks before it submits."""

    _http: Transport

    def plan(self, spec: Mapping[str, Any] | BaseModel, *, wait_seconds: float = 60.0) -> PlanView:
        """Check a spec and estimate its run; nothing is created, and an unsound spec is an answer: see `ok`.

        A worker looks at models, prompts and rewards; where none does within `wait_seconds` (at most 120), the answer
        has the rest and says so in `not_probed`.
        """
        body = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, BaseModel) else dict(spec)
        params, patience = {"timeout": wait_seconds}, wait_seconds + _MARGIN_SECONDS
        answer = self._http.json("POST", "/v1/jobs/plan", params=params, body=body, read_timeout_seconds=patience)
        return PlanView.model_validate(answer)
