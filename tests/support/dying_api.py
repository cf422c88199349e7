"""`python -m tests.support.dying_api`: a front door that is killed between the commit of a submit and its answer."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from api.__main__ import main
from jobs import service

_submit = service.submit


def submit_and_die(*arguments: Any, **options: Any) -> None:
    """Submit a job for good, and end as a lost machine does."""
    _submit(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    service.submit = submit_and_die
    sys.exit(main())
