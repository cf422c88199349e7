"""The domain is synchronous: its calls run in threads, for HTTP and gRPC alike, within one limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread

T = TypeVar("T")


def limit_threads(count: int) -> None:
    """Bound the threads of this event loop; more than the database pool holds would only wait inside it."""
    to_thread.current_default_thread_limiter().total_tokens = count


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run `function` in a worker thread. A cancelled caller leaves the thread to end its call and be used again."""
    return await to_thread.run_sync(partial(function, *args, **kwargs))
