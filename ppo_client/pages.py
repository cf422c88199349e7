"""Lists that the service gives a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from jobs.views import Page, View
from ppo_client.transport import Transport

V = TypeVar("V", bound=View)


def pages(http: Transport, path: str, kind: type[V], params: Mapping[str, Any]) -> Iterator[V]:
    """All items of a list, in its order; each page is fetched when its first item is wanted."""
    asked = dict(params)
    while True:
        page = Page[kind].model_validate(http.json("GET", path, params=asked))  # type: ignore[valid-type]
        yield from page.items
        if page.next_page_token is None:
            return
        asked["page_token"] = page.next_page_token
