"""What a look at the service found: one line each, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """The service works, but something is off or will be."""
    FAILURE = "failure"
    """Something does not work now."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. Holds no secret: addresses are given without their passwords."""

    check: str
    level: Level
    text: str
    advice: str = ""
    """What to do; empty where all is well."""


def good(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Worth a look."""
    return Finding(check, Level.WARNING, text, advice)


def failure(check: str, text: str, advice: str) -> Finding:
    """Does not work."""
    return Finding(check, Level.FAILURE, text, advice)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the worst finding; ok where there is none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)


def as_json(findings: Sequence[Finding]) -> str:
    """One JSON document on one line: `level` is the worst of `findings`."""
    return json.dumps({"level": worst(findings), "findings": [asdict(finding) for finding in findings]})


def as_text(findings: Sequence[Finding]) -> str:
    """One line for each finding, and below it what to do."""
    lines = []
    for found in findings:
        lines.append(f"{found.level:<8} {found.check:<11} {found.text}")
        if found.advice:
            lines.append(f"{'':20} -> {found.advice}")
    return "\n".join(lines)
