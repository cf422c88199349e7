"""Follows a job on a console, from now to its end."""

from __future__ import annotations

import threading
from contextlib import closing
from types import TracebackType
from typing import Self

from rich.console import Console

from jobs.states import JobState
from jobs.views import JobView
from ppo_client.client import PPOClient
from ppo_client.errors import ClientError
from ppo_client.output import error_text
from ppo_client.progress import Display, display_for


def follow(client: PPOClient, job_id: str, console: Console) -> JobView:
    """Show the job until it has ended; returns it as it ended. An interrupt leaves it running."""
    display = display_for(console)
    with closing(display), _Refresher(client, job_id, display):
        for update in client.watch(job_id):
            display.show(update)
    job = client.get(job_id)
    if job.error is not None and job.state is JobState.FAILED:
        console.print(error_text(job.error))
    return job


class _Refresher:
    """Looks at the job every second beside the stream, which does not tell phases and time left."""

    def __init__(self, client: PPOClient, job_id: str, display: Display) -> None:
        self._client = client
        self._job_id = job_id
        self._display = display
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)

    def __enter__(self) -> Self:
        if self._display.wants_refresh:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._display.refresh(self._client.get(self._job_id))
            except ClientError:
                # The stream meets the same trouble and has the patience for it.
                continue
