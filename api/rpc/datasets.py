"""DatasetService: uploaded prompts and texts."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from api.context import Context
from api.errors import MalformedBody
from api.parameters import MAX_PAGE_SIZE, bounded
from api.rpc.convert import moment
from api.rpc.gate import CALLER
from api.rpc.v1 import dataset_service_pb2 as pb
from api.rpc.v1.dataset_service_pb2_grpc import DatasetServiceServicer
from api.threads import in_thread
from api.uploads import dataset_format, receive
from jobs import datasets
from jobs.views import DatasetView


class DatasetServicer(DatasetServiceServicer):
    """DatasetService over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._db = context.db

    async def UploadDataset(
        self, request_iterator: AsyncIterator[pb.UploadDatasetRequest], context: Any
    ) -> pb.UploadDatasetResponse:
        """Keep a file as a dataset."""
        parts = aiter(request_iterator)
        first = await anext(parts, pb.UploadDatasetRequest())
        if first.WhichOneof("part") != "header":
            raise MalformedBody("the first message must be the `header`")
        header = first.header
        kind = dataset_format("", f"x.{header.format}" if header.format else header.name)
        async with receive(self._context, _content(parts)) as upload:
            view, created = await in_thread(
                datasets.add,
                self._db,
                CALLER.get(),
                upload,
                name=header.name or "dataset",
                kind=kind,
                limits=self._context.settings.limits,
            )
        return pb.UploadDatasetResponse(dataset=_dataset(view), created=created)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: Any) -> pb.GetDatasetResponse:
        """Look a dataset up."""
        folder = self._context.settings.datasets_dir
        view = await in_thread(datasets.get, self._db, CALLER.get(), request.dataset_id, folder)
        return pb.GetDatasetResponse(dataset=_dataset(view))

    async def ListDatasets(self, request: pb.ListDatasetsRequest, context: Any) -> pb.ListDatasetsResponse:
        """List one page of datasets."""
        size = bounded("page_size", request.page_size, default=50, least=1, most=MAX_PAGE_SIZE)
        token = request.page_token or None
        page = await in_thread(datasets.list_datasets, self._db, CALLER.get(), page_size=size, page_token=token)
        return pb.ListDatasetsResponse(datasets=map(_dataset, page.items), next_page_token=page.next_page_token or "")

    async def DeleteDataset(self, request: pb.DeleteDatasetRequest, context: Any) -> pb.DeleteDatasetResponse:
        """Delete a dataset."""
        folder = self._context.settings.datasets_dir
        await in_thread(datasets.delete, self._db, CALLER.get(), request.dataset_id, folder)
        return pb.DeleteDatasetResponse()


async def _content(parts: AsyncIterator[pb.UploadDatasetRequest]) -> AsyncIterator[bytes]:
    async for part in parts:
        if part.WhichOneof("part") != "chunk":
            raise MalformedBody("after the header every message must be a `chunk`")
        yield part.chunk


def _dataset(view: DatasetView) -> pb.Dataset:
    """A dataset for the wire."""
    message = pb.Dataset(
        **view.model_dump(exclude={"columns", "create_time", "preview"}),
        columns=[pb.Column(**column.model_dump()) for column in view.columns],
        create_time=moment(view.create_time),
    )
    for row in view.preview:
        message.preview.add().update(row)
    return message
