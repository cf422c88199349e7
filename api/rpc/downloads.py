"""Archives as streams: a header, then the bytes in pieces, from where the caller has them already."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from api.archive import open_archive
from api.context import Context
from api.errors import RangeNotSatisfiable
from api.exports import exported
from api.parameters import job_id
from api.rpc.gate import CALLER
from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceServicer
from api.threads import in_thread
from jobs import archives
from jobs.archives import Bundle, ExportForm
from jobs.errors import InvalidArgument


class DownloadRpcs(JobServiceServicer):
    """The part of JobService that sends files."""

    _context: Context

    async def DownloadCheckpoint(
        self, request: pb.DownloadCheckpointRequest, context: Any
    ) -> AsyncGenerator[pb.DownloadCheckpointResponse]:
        """Send a checkpoint's tar."""
        bundle = await self._bundle(archives.checkpoint_bundle, request.job_id, request.step)
        async with aclosing(_parts(bundle, request.offset)) as parts:
            async for part in parts:
                yield pb.DownloadCheckpointResponse(**part)

    async def ExportModel(self, request: pb.ExportModelRequest, context: Any) -> AsyncGenerator[pb.ExportModelResponse]:
        """Send a model's tar."""
        form = _form(request.form)
        bundle = await exported(self._context, CALLER.get(), job_id(request.job_id), request.step or "last", form)
        async with aclosing(_parts(bundle, request.offset)) as parts:
            async for part in parts:
                yield pb.ExportModelResponse(**part)

    async def DownloadTensorBoard(
        self, request: pb.DownloadTensorBoardRequest, context: Any
    ) -> AsyncGenerator[pb.DownloadTensorBoardResponse]:
        """Send the tar of the TensorBoard files."""
        bundle = await self._bundle(archives.tensorboard_bundle, request.job_id)
        async with aclosing(_parts(bundle, request.offset)) as parts:
            async for part in parts:
                yield pb.DownloadTensorBoardResponse(**part)

    async def _bundle(self, make: Callable[..., Bundle], job: str, *which: Any) -> Bundle:
        context = self._context
        return await in_thread(make, context.db, CALLER.get(), job_id(job), *which, context.settings.runs_dir)


async def _parts(bundle: Bundle, offset: int) -> AsyncGenerator[dict[str, Any]]:
    """The messages' fields."""
    archive = await in_thread(open_archive, bundle)
    # `files` too: a client may leave before the first chunk, and what has not begun has nothing to close.
    with archive.files:
        if not 0 <= offset <= archive.size:
            raise RangeNotSatisfiable(f"the archive has {archive.size} bytes", size=archive.size)
        header = pb.ArchiveHeader(size_bytes=archive.size, sha256=archive.sha256, file_name=archive.file_name)
        yield {"header": header}
        async with aclosing(archive.chunks(offset)) as chunks:
            async for chunk in chunks:
                yield {"chunk": chunk}


def _form(text: str) -> ExportForm:
    try:
        return ExportForm(text or ExportForm.MERGED)
    except ValueError as error:
        raise InvalidArgument(f"`form` must be {', '.join(ExportForm)}") from error
