"""Sends an archive, whole or from where a download broke (RFC 9110 sections 13 and 14)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.responses import Response, StreamingResponse

from api.archive import Archive, open_archive
from api.errors import RangeNotSatisfiable
from api.http.errors import Responses
from jobs.archives import Bundle

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)

TAR: Responses = {
    200: {"description": "The archive as a tar.", "content": {"application/x-tar": {}}},
    206: {"description": "The part of it that `Range` asks for.", "content": {"application/x-tar": {}}},
    304: {"description": "It is as `If-None-Match` knows it."},
}


@dataclass(frozen=True, slots=True)
class Part:
    """What of an archive is wanted, in the headers' own words."""

    range: str
    if_range: str | None


async def _part(
    range_: Annotated[
        str, Header(alias="range", description="`bytes=N-`: only what is behind the first N bytes.")
    ] = "",
    if_range: Annotated[
        str | None, Header(description="The ETag of what came; the range counts only while it is the same.")
    ] = None,
) -> Part:
    return Part(range_, if_range)


Wanted = Annotated[Part, Depends(_part)]


def send(request: Request, bundle: Bundle, part: Part) -> Response:
    """The answer to GET or HEAD: 200, 206 for one `Range`, 304 where the client has it.

    A `Range` counts only while `If-Range` is the present ETag; several ranges at once are answered with everything.

    Raises:
        RangeNotSatisfiable: it begins behind the end.
    """
    etag = f'"{bundle.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{bundle.file_name}"',
        "X-Archive-SHA256": bundle.sha256,
    }
    if etag in (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    archive = open_archive(bundle)
    try:
        start, stop = _wanted(part, archive, etag) if request.method == "GET" else (0, archive.size)
    except RangeNotSatisfiable:
        archive.files.close()
        raise
    partial = (start, stop) != (0, archive.size)
    headers["Content-Length"] = str(stop - start)
    if partial:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{archive.size}"
    status = 206 if partial else 200
    if request.method == "HEAD":
        archive.files.close()
        return Response(status_code=status, headers=headers, media_type="application/x-tar")
    request.state.streamed = True
    return StreamingResponse(archive.chunks(start, stop), status, headers, media_type="application/x-tar")


def _wanted(part: Part, archive: Archive, etag: str) -> tuple[int, int]:
    """First byte, and the one behind the last."""
    whole = 0, archive.size
    match = _RANGE.fullmatch(part.range.replace(" ", ""))
    if match is None or match.groups() == ("", ""):
        return whole
    if part.if_range is not None and part.if_range != etag:
        return whole
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return whole  # not a range at all
    start = int(first) if first else max(archive.size - int(last), 0)
    stop = min(int(last) + 1, archive.size) if first and last else archive.size
    if start >= stop:
        raise RangeNotSatisfiable(f"the archive has {archive.size} bytes", size=archive.size)
    return start, stop
