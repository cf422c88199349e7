"""The archive of a trained model, the same for both doors: made first where its adapter is to be merged."""

from __future__ import annotations

from functools import partial

from api.context import Context
from api.errands import asked
from api.threads import in_thread
from jobs.archives import Bundle, ExportForm, ExportNotMade, export_bundle
from jobs.auth import Principal
from jobs.errors import Unavailable
from jobs.exporting import ask_export

_WAIT_SECONDS = 20.0
"""Less than what clients bear in silence; who asks again joins the merge that is under way."""


async def exported(context: Context, caller: Principal, job_id: str, step: str, form: ExportForm) -> Bundle:
    """What `export_bundle` finds, once a worker has merged what it has to.

    Raises:
        Unavailable: that takes longer; ask again.
        ErrandRefused, ErrandFailed, NoWorker, QuotaExceeded: it cannot be merged.
    """
    look = partial(in_thread, export_bundle, context.db, caller, job_id, step, form, context.settings.runs_dir)
    try:
        return await look()
    except ExportNotMade as missing:
        ask = partial(ask_export, context.db, caller, job_id, missing.step)
        view = await asked(context, caller, ask, _WAIT_SECONDS)
    if not view.done:
        raise Unavailable("the adapter is being merged into its model; ask again")
    return await look()
