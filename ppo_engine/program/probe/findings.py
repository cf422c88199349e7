"""Collects what is wrong, so that one broken part does not hide the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

from ppo_engine.errors import EngineError
from ppo_engine.plans import Remark


@dataclass
class Findings:
    """Errors, and things worth a thought."""

    errors: list[Remark] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)

    def noting(self, pointer: str) -> _Noting:
        """What would end the run in this block is noted at `pointer`, with the code that the run would end with."""
        return _Noting(self, pointer)

    def fail(self, pointer: str, error: EngineError) -> None:
        """The run would end with this error."""
        found = Remark(pointer=pointer, code=error.code, detail=error.message, suggestion=error.advice)
        self.errors.append(found)

    def warn(self, pointer: str, code: str, detail: str, suggestion: str = "") -> None:
        """The run would go on."""
        self.warnings.append(Remark(pointer=pointer, code=code, detail=detail, suggestion=suggestion))


@dataclass(frozen=True, slots=True)
class _Noting:
    findings: Findings
    pointer: str

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, EngineError):
            return False
        self.findings.fail(self.pointer, error)
        return True
