"""Checkpoints: list and download."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import StreamingResponse

from api import errors as door
from api.archive import open_archive
from api.http.deps import Caller, Ctx, JobId
from api.http.errors import Responses, responses
from api.http.queries import NO_QUERY
from jobs import errors as domain
from jobs import service
from jobs.views import CheckpointView, Page

router = APIRouter(prefix="/v1/jobs/{job_id}/checkpoints", tags=["checkpoints"], dependencies=[NO_QUERY])

_REFUSALS = responses(domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound)
_TAR: Responses = {200: {"description": "The checkpoint as a tar.", "content": {"application/x-tar": {}}}}

Step = Annotated[int, Path(ge=0, lt=2**63, description="The checkpoint's step.")]


@router.get("", responses=_REFUSALS)
def checkpoints(context: Ctx, caller: Caller, job_id: JobId) -> Page[CheckpointView]:
    """List the checkpoints that can be downloaded."""
    return Page[CheckpointView](items=service.checkpoints(context.db, caller, job_id))


@router.get("/{step}/archive", response_class=StreamingResponse, responses={**_TAR, **_REFUSALS})
def archive(context: Ctx, caller: Caller, job_id: JobId, step: Step, request: Request) -> StreamingResponse:
    """Download a checkpoint as a tar with its files at the top.

    `model/` is a Hugging Face folder. `X-Checkpoint-SHA256` is the checkpoint's digest: that of `manifest.json`, which
    holds the digest of every other file. The length is known, so a cut download is noticed.
    """
    found = service.checkpoint(context.db, caller, job_id, step)
    folder = service.checkpoint_dir(context.db, caller, job_id, step, context.settings.runs_dir)
    tar = open_archive(folder)
    request.state.streamed = True
    headers = {
        "Content-Length": str(tar.size),
        "Content-Disposition": f'attachment; filename="{job_id}-step-{step}.tar"',
        "X-Checkpoint-SHA256": found.sha256,
    }
    return StreamingResponse(tar.chunks(), media_type="application/x-tar", headers=headers)
