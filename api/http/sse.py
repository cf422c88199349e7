"""A job's stream as server-sent events (WHATWG HTML, section 9.2).

`job` is the job as it is, first; `event` one entry of its journal; `step` the scalars of one step; `gap` says of which
steps only some follow; `end` is the job as it ended, last. The id of each is its place, and a comment every 15 s keeps
proxies awake. A stream that closes without `end` was cut: reconnect, as a browser's EventSource does by itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from prometheus_client import Gauge

from api.watch import Cursor, End, Gap, Happened, Heartbeat, Snapshot, Update
from jobs.errors import Unavailable

RETRY_MS = 3000
_ENDED = ".end"


def place_of(last_event_id: str | None) -> tuple[Cursor, bool]:
    """The place a Last-Event-ID names, and whether `end` had been seen there.

    Raises:
        InvalidArgument: not an id of ours.
    """
    if not last_event_id:
        return Cursor(), False
    return Cursor.parse(last_event_id.removesuffix(_ENDED)), last_event_id.endswith(_ENDED)


async def text(
    first: tuple[Update, Cursor], rest: AsyncGenerator[tuple[Update, Cursor], None], open_streams: Gauge
) -> AsyncGenerator[str, None]:
    """The stream's text. It stops without `end` when the server shuts down or loses its database."""
    with open_streams.track_inprogress(), suppress(Unavailable):
        async with aclosing(rest):
            yield f"retry: {RETRY_MS}\n\n" + frame(*first)
            async for update, cursor in rest:
                yield frame(update, cursor)


def frame(update: Update, cursor: Cursor) -> str:
    """One event, or the comment that a heartbeat is."""
    if isinstance(update, Heartbeat):
        return ": heartbeat\n\n"
    if isinstance(update, Snapshot):
        return _event("job", str(cursor), update.job.model_dump_json())
    if isinstance(update, End):
        return _event("end", f"{cursor}{_ENDED}", update.job.model_dump_json())
    if isinstance(update, Happened):
        return _event("event", str(cursor), update.event.model_dump_json())
    if isinstance(update, Gap):
        return _event("gap", str(cursor), _json({"from_step": update.from_step, "to_step": update.to_step}))
    return _event("step", str(cursor), _json({"step": update.step, "time": update.time, "metrics": update.metrics}))


def _event(name: str, event_id: str, data: str) -> str:
    # One line of data: JSON has no raw line ends.
    return f"event: {name}\nid: {event_id}\ndata: {data}\n\n"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, default=lambda moment: moment.isoformat(), separators=(",", ":"))
