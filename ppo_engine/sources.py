"""Which folders a spec may name: paths resolve under the operator's roots and nowhere else. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class SourceError(ValueError):
    """A path in a spec that cannot be used; the message is for the user."""


def resolve(path: str, roots: Sequence[Path]) -> Path:
    """Return the existing file or folder that `path` means.

    A relative path is looked up in each root in turn; an absolute path must lie inside one. Links are followed before
    the check, so a link cannot lead out of a root.

    Raises:
        SourceError: not found, or outside every root.
    """
    if "\x00" in path:
        raise SourceError("a path cannot contain a NUL character")
    wanted = Path(path)
    inside = [root.resolve() for root in roots]
    for candidate in [wanted] if wanted.is_absolute() else [root / wanted for root in inside]:
        real = candidate.resolve()
        if any(real.is_relative_to(root) for root in inside) and real.exists():
            return real
    raise SourceError(f"`{path}` is not under the model and data roots of this service")
