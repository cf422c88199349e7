"""An upload on its way to disk, the same for both doors, and what kind of file it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import PurePosixPath

from api.context import Context
from api.errors import BodyTimeout, UnsupportedMediaType
from api.threads import in_thread
from jobs.dataset_rows import DatasetFormat
from jobs.datasets import Upload

_WRITE_BYTES = 1 << 20
_MEDIA_TYPES = {
    "application/jsonl": DatasetFormat.JSONL,
    "application/jsonlines": DatasetFormat.JSONL,
    "application/x-jsonlines": DatasetFormat.JSONL,
    "application/x-ndjson": DatasetFormat.JSONL,
    "application/ndjson": DatasetFormat.JSONL,
    "text/csv": DatasetFormat.CSV,
    "application/vnd.apache.parquet": DatasetFormat.PARQUET,
    "application/x-parquet": DatasetFormat.PARQUET,
}
MEDIA_TYPES = tuple(_MEDIA_TYPES)
_SUFFIXES = {
    ".jsonl": DatasetFormat.JSONL,
    ".ndjson": DatasetFormat.JSONL,
    ".csv": DatasetFormat.CSV,
    ".parquet": DatasetFormat.PARQUET,
}


def dataset_format(media_type: str, filename: str) -> DatasetFormat:
    """What a file is: by its type where that says it, else by the end of its name.

    Raises:
        UnsupportedMediaType: neither does.
    """
    kind = _MEDIA_TYPES.get(media_type.partition(";")[0].strip().lower())
    kind = kind or _SUFFIXES.get(PurePosixPath(filename).suffix.lower())
    if kind is None:
        raise UnsupportedMediaType(
            "a dataset is JSON Lines (application/jsonl), CSV (text/csv) or Parquet (application/vnd.apache.parquet); "
            "say so in the Content-Type, or by a file name that ends with .jsonl, .csv or .parquet"
        )
    return kind


@asynccontextmanager
async def receive(context: Context, chunks: AsyncIterator[bytes]) -> AsyncIterator[Upload]:
    """Write `chunks` to disk as they come; the file is gone at the end of the block.

    Raises:
        DatasetTooLarge, Unavailable: as `jobs.datasets.Upload`.
        BodyTimeout: the next piece did not come in time, or the pieces come too slowly.
    """
    settings = context.settings
    async with AsyncExitStack() as stack:
        upload = await in_thread(Upload, settings.datasets_dir, settings.max_dataset_bytes)
        stack.push_async_callback(in_thread, upload.__exit__, None, None, None)
        held = bytearray()
        async for chunk in in_time(chunks, settings.body_seconds, settings.upload_bytes_per_second):
            held += chunk
            if len(held) >= _WRITE_BYTES:
                await in_thread(upload.write, bytes(held))
                held.clear()
        await in_thread(upload.write, bytes(held))
        yield upload


async def in_time(chunks: AsyncIterator[bytes], seconds: float, least_bytes_per_second: float) -> AsyncIterator[bytes]:
    """The chunks, as long as they come in time: otherwise one byte now and then would hold a connection for days.

    Only the time that is spent waiting for them counts.

    Raises:
        BodyTimeout: none for `seconds`, or on average less than the rate beyond the first `seconds`.
    """
    clock = asyncio.get_running_loop().time
    waited, received = 0.0, 0
    while True:
        began = clock()
        try:
            async with asyncio.timeout(min(seconds, seconds + received / least_bytes_per_second - waited)):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise BodyTimeout(
                f"each part of the body must arrive within {seconds:g} seconds, "
                f"and the whole at {least_bytes_per_second:g} bytes a second or more"
            ) from error
        if chunk is None:
            return
        waited += clock() - began
        received += len(chunk)
        yield chunk
