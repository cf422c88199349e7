"""Server-sent events: the text format, and nothing of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; `id` is the last id seen on the stream, as the standard has it."""

    event: str
    data: str
    id: str | None


def lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines of a text that comes in pieces.

    Line ends are LF and CRLF only: U+2028 and its like, at which `str.splitlines` cuts, may stand inside JSON.
    """
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line.removesuffix("\r")


def parse(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Events of a stream of lines without line ends. An event without its closing blank line is dropped."""
    name, data, last_id = "message", list[str](), None
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data), last_id)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            last_id = value
