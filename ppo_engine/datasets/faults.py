"""What is wrong with a folder of prompts: all of it at once, each with the field of the spec that it concerns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_NAMED = 3
_MAX_ALLOWED = 50


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason why a folder cannot be used."""

    part: str
    """The field of `PromptFolder`."""
    code: str
    detail: str
    allowed: tuple[str, ...] = ()
    """What the field may be."""


class FolderUnusable(ValueError):
    """A folder that gives no prompts; `faults` says why."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(replace(fault, detail=_sendable(fault.detail)) for fault in faults)
        named = "; ".join(map(_sentence, self.faults[:_NAMED]))
        super().__init__(named + (f" (and {len(faults) - _NAMED} more)" if len(faults) > _NAMED else ""))


def unusable(detail: str, *, part: str = "path", code: str = "source_unusable") -> FolderUnusable:
    """The error for one reason."""
    return FolderUnusable([Fault(part, code, detail)])


def unknown(part: str, what: str, given: str, there: Sequence[str]) -> FolderUnusable:
    """The error for a `what` that is not among those that there are."""
    allowed = tuple(_sendable(name)[:128] for name in there[:_MAX_ALLOWED])
    return FolderUnusable([Fault(part, f"unknown_{what}", f"there is no {what} `{given}`", allowed)])


def _sentence(fault: Fault) -> str:
    return f"{fault.detail} (there is {', '.join(fault.allowed)})" if fault.allowed else fault.detail


def _sendable(text: str) -> str:
    """Names of files and columns may hold what neither a database nor a protocol takes."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
