"""Whether this worker was asked to end."""

from __future__ import annotations


class Shutdown:
    """Counts the requests: one means checkpoint and give the jobs back, a second means do it without waiting.

    A plain number that others look at, because it is raised in a signal handler, where taking a lock can deadlock.
    """

    def __init__(self) -> None:
        self._requests = 0

    def request(self) -> None:
        """Ask once more."""
        self._requests += 1

    @property
    def asked(self) -> bool:
        """Whether the worker is ending."""
        return self._requests > 0

    @property
    def urgent(self) -> bool:
        """Whether engines are to be killed rather than waited for."""
        return self._requests > 1
