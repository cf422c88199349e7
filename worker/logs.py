"""One line per record on standard error, for this process and for Celery in it."""

from __future__ import annotations

import logging

from celery import signals

from jobs.mask import mask


class _Formatter(logging.Formatter):
    """Also keeps broker passwords, which Celery puts into its messages, out of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


def configure(level: int = logging.INFO) -> None:
    """Set up logging; Celery leaves it alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    # A receiver, even one that does nothing, tells Celery that logging is set up.
    signals.setup_logging.connect(_leave_alone, weak=False)


def _leave_alone(**_: object) -> None:
    return
