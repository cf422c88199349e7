"""Checkpoints, models and TensorBoard folders: list and download."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from api import errors as door
from api.exports import exported
from api.http.deps import Caller, Ctx, JobId
from api.http.downloads import TAR, Wanted, send
from api.http.errors import Responses, responses
from api.http.queries import NO_QUERY, ExportQuery, PageQuery
from api.threads import in_thread
from jobs import archives, service
from jobs import errors as domain
from jobs.views import CheckpointView, Page

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["checkpoints"])

_ACCESS = (domain.InvalidArgument, domain.Unauthenticated, door.HostNotAllowed, domain.JobNotFound)
_DOWNLOAD: Responses = {**TAR, **responses(*_ACCESS, door.RangeNotSatisfiable)}
_EXPORT: Responses = {
    **TAR,
    **responses(
        *_ACCESS,
        door.RangeNotSatisfiable,
        domain.ErrandRefused,
        domain.ErrandFailed,
        domain.NoWorker,
        domain.QuotaExceeded,
    ),
}

Step = Annotated[int, Path(ge=0, lt=2**63, description="The checkpoint's step.")]


@router.get("/checkpoints", responses=responses(*_ACCESS))
def checkpoints(
    context: Ctx, caller: Caller, job_id: JobId, query: Annotated[PageQuery, Query()]
) -> Page[CheckpointView]:
    """List the checkpoints that can be downloaded, oldest first, a page at a time."""
    return service.checkpoints(context.db, caller, job_id, page_size=query.page_size, token=query.page_token)


@router.head("/checkpoints/{step}/archive", dependencies=[NO_QUERY], include_in_schema=False)
@router.get(
    "/checkpoints/{step}/archive",
    dependencies=[NO_QUERY],
    response_class=StreamingResponse,
    responses=_DOWNLOAD,
)
def archive(context: Ctx, caller: Caller, job_id: JobId, step: Step, request: Request, part: Wanted) -> Response:
    """Download a checkpoint as a tar with its files at the top.

    `model/` is a Hugging Face folder. The ETag is the checkpoint's digest: that of `manifest.json`, which holds the
    digest of every other file. A broken download goes on with `Range: bytes=N-` and `If-Range`.
    """
    bundle = archives.checkpoint_bundle(context.db, caller, job_id, step, context.settings.runs_dir)
    answer = send(request, bundle, part)
    answer.headers["X-Checkpoint-SHA256"] = bundle.sha256
    return answer


@router.head("/export", include_in_schema=False)
@router.get("/export", response_class=StreamingResponse, responses=_EXPORT)
async def export(
    context: Ctx, caller: Caller, job_id: JobId, query: Annotated[ExportQuery, Query()], request: Request, part: Wanted
) -> Response:
    """Download a trained model as `from_pretrained` loads it, with a card that says how it was made.

    The tar has the files at the top; `manifest.json` among them holds the digest of every other, and its own digest is
    the ETag. A broken download goes on with `Range` and `If-Range`. `merged` of a LoRA run has a worker merge the
    adapter first; where that takes long the answer is 503 with `Retry-After`, and the merge goes on.
    """
    bundle = await exported(context, caller, job_id, query.step, query.form)
    return await in_thread(send, request, bundle, part)


@router.head("/tensorboard/archive", dependencies=[NO_QUERY], include_in_schema=False)
@router.get(
    "/tensorboard/archive",
    dependencies=[NO_QUERY],
    response_class=StreamingResponse,
    responses=_DOWNLOAD,
)
def tensorboard(context: Ctx, caller: Caller, job_id: JobId, request: Request, part: Wanted) -> Response:
    """Download the TensorBoard files of a job up to now, with a `manifest.json` as of an export."""
    bundle = archives.tensorboard_bundle(context.db, caller, job_id, context.settings.runs_dir)
    return send(request, bundle, part)
