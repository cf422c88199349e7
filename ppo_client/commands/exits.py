"""Exit codes of the `ppo` command, and which error means which."""

from __future__ import annotations

from enum import IntEnum

from ppo_client import errors


class Exit(IntEnum):
    """What a script can tell from the exit code."""

    DONE = 0
    JOB_FAILED = 1
    """The job that was followed failed or was cancelled, or replayed steps came out otherwise."""
    INVALID = 2
    """Wrong usage, or a spec that cannot be run."""
    UNREACHABLE = 3
    """The service does not answer."""
    REFUSED = 4
    """The service refused: unknown job, no access, wrong state, too much at once."""
    OBSTACLE = 5
    """Something here is in the way: a port, a folder, a damaged download."""
    INTERRUPTED = 130


HELP = (
    "Exit codes: 0 done; 1 job failed or cancelled, or a replay differed; 2 wrong usage or invalid spec; "
    "3 service unreachable; 4 refused; 5 local obstacle; 130 interrupted."
)


class UnusableSpec(errors.ClientError):
    """A spec file that cannot be read as a JSON object."""


def exit_code(error: errors.ClientError) -> Exit:
    """The exit code that an error means."""
    if isinstance(error, errors.InvalidRequest | errors.UnusableUrl | UnusableSpec):
        return Exit.INVALID
    if isinstance(error, errors.ServiceUnreachable | errors.ServiceUnavailable | errors.ProtocolError):
        return Exit.UNREACHABLE
    return Exit.REFUSED if isinstance(error, errors.ApiError) else Exit.OBSTACLE
