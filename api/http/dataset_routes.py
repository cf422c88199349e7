"""Datasets: upload, list, look at, delete."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api import errors as door
from api.errors import UnsupportedMediaType
from api.http.deps import Caller, Ctx
from api.http.errors import responses
from api.http.multipart import FormFile
from api.http.queries import NO_QUERY, DatasetQuery, PageQuery
from api.parameters import MAX_PAGE_SIZE
from api.threads import in_thread
from api.uploads import MEDIA_TYPES, dataset_format, receive
from jobs import datasets
from jobs import errors as domain
from jobs.views import DatasetView, Page

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

DatasetId = Annotated[str, Path(description="Id of a dataset, `ds_...`.")]
_ACCESS = (domain.Unauthenticated, door.HostNotAllowed)
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _FORM}, **dict.fromkeys(MEDIA_TYPES, _BINARY)},
    }
}


@router.post(
    "",
    status_code=201,
    openapi_extra=_BODY,
    responses={
        200: {"description": "The same file was uploaded before: that dataset.", "model": DatasetView},
        **responses(
            door.MalformedBody,
            domain.InvalidArgument,
            *_ACCESS,
            door.BodyTimeout,
            domain.DatasetTooLarge,
            domain.DatasetQuotaExceeded,
            door.UnsupportedMediaType,
            domain.InvalidDataset,
        ),
    },
)
async def add_dataset(
    context: Ctx, caller: Caller, request: Request, response: Response, query: Annotated[DatasetQuery, Query()]
) -> DatasetView:
    """Upload a dataset: JSON Lines, CSV or Parquet, as the body itself or as the part `file` of a form.

    Every row is checked, and the problems name their rows (`/rows/17` is the 17th). The same file uploaded again
    answers 200 with the dataset that there is. A spec names it as `{"dataset": {"id": "ds_...", "field": "prompt"}}`
    wherever it takes prompts or texts.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"send the body as it is, not as `{encoding}`")
    media_type, filename = request.headers.get("content-type", ""), query.name or ""
    form = FormFile(media_type) if media_type.lower().startswith("multipart/form-data") else None
    if form is None:
        dataset_format(media_type, filename)  # refused before anything is read
    async with aclosing(_content(request, form)) as chunks, receive(context, chunks) as upload:
        if form is not None:
            part = form.finish()
            media_type, filename = part.content_type, part.filename
        kind, name = dataset_format(media_type, filename), query.name or filename or "dataset"
        view, created = await in_thread(
            datasets.add, context.db, caller, upload, name=name, kind=kind, limits=context.settings.limits
        )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/datasets/{view.id}"
    return view


async def _content(request: Request, form: FormFile | None) -> AsyncGenerator[bytes]:
    async for chunk in request.stream():
        yield chunk if form is None else form.feed(chunk)


@router.get("", responses=responses(domain.InvalidArgument, *_ACCESS))
def list_datasets(context: Ctx, caller: Caller, query: Annotated[PageQuery, Query()]) -> Page[DatasetView]:
    """List your datasets, newest first, a page at a time."""
    size = min(query.page_size, MAX_PAGE_SIZE)
    return datasets.list_datasets(context.db, caller, page_size=size, page_token=query.page_token)


@router.get("/{dataset_id}", dependencies=[NO_QUERY], responses=responses(*_ACCESS, domain.DatasetNotFound))
def get_dataset(context: Ctx, caller: Caller, dataset_id: DatasetId) -> DatasetView:
    """Get a dataset, with its first rows."""
    return datasets.get(context.db, caller, dataset_id, context.settings.datasets_dir)


@router.delete(
    "/{dataset_id}",
    status_code=204,
    dependencies=[NO_QUERY],
    responses=responses(*_ACCESS, domain.DatasetNotFound, domain.DatasetInUse),
)
def delete_dataset(context: Ctx, caller: Caller, dataset_id: DatasetId) -> None:
    """Delete a dataset; refused while a job that has not ended needs it."""
    datasets.delete(context.db, caller, dataset_id, context.settings.datasets_dir)
