"""Why a process cannot start with the settings of its environment, in one line that holds no secret."""

from __future__ import annotations

from pydantic import ValidationError

from jobs.problems import sentence


def unusable(error: ValueError) -> str:
    """What is wrong with which variable, of the error that the settings or the database raised."""
    if not isinstance(error, ValidationError):
        return str(error)
    # Not str(error): it repeats the values, and one of them may be a secret.
    return "; ".join(_line(tuple(map(str, e["loc"])), sentence(e)[1]) for e in error.errors(include_input=False))


def _line(place: tuple[str, ...], detail: str) -> str:
    return f"PPO_{'_'.join(place).upper()}: {detail}" if place else detail
