"""A plan, the same for both doors: what the front door can judge, and what a worker sees, in one answer."""

from __future__ import annotations

from typing import Any

from api.context import Context
from api.errands import waited
from api.threads import in_thread
from jobs.auth import Principal
from jobs.errors import NoWorker, QuotaExceeded
from jobs.plan_views import PlanView
from jobs.planning import SPEC_FIRST, Draft, ask_probe, complete, draft
from ppo_engine.plans import Probe


async def plan(context: Context, caller: Principal, document: dict[str, Any], wait_seconds: float) -> PlanView:
    """Check a spec and estimate its run; an unsound spec is an answer, not a refusal."""
    drafted = await in_thread(draft, context.db, caller, document, context.settings.model_roots, context.settings.reach)
    found, why = await _probe(context, caller, drafted, wait_seconds)
    return await in_thread(complete, context.db, caller, drafted, found, why, context.settings.limits)


async def _probe(
    context: Context, caller: Principal, drafted: Draft, wait_seconds: float
) -> tuple[Probe | None, str | None]:
    """What a worker saw, or why none has looked."""
    if drafted.spec is None or not drafted.may_be_looked_at:
        return None, SPEC_FIRST
    config, queue = drafted.spec.train_config(), drafted.spec.resources.queue
    try:
        errand_id = await in_thread(ask_probe, context.db, caller, config, queue)
    except (NoWorker, QuotaExceeded) as error:
        return None, error.message
    view = await waited(context, caller, errand_id, wait_seconds)
    if view.error is not None:
        return None, f"the look failed: {view.error.message}"
    if view.probe is None:
        return None, f"no worker answered within {wait_seconds:g} s; what it finds will be in errand {view.id}"
    return view.probe, None
