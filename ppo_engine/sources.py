"""Which folders a spec may name: paths resolve under the operator's roots and nowhere else. Torch-free."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO


class SourceError(ValueError):
    """A path in a spec that cannot be used; the message is for the user."""


def resolve(path: str, roots: Sequence[Path]) -> Path:
    """Return the existing file or folder that `path` means.

    A relative path is looked up in each root in turn; an absolute path must lie inside one. Links are followed before
    the check, so a link cannot lead out of a root.

    Raises:
        SourceError: not found, outside every root, or not to be read.
    """
    if "\x00" in path:
        raise SourceError("a path cannot contain a NUL character")
    try:
        found = _find(path, roots)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise SourceError(f"`{path}` cannot be read") from error
    if found is None:
        raise SourceError(f"`{path}` is not under the model and data roots of this service")
    return found


def _find(path: str, roots: Sequence[Path]) -> Path | None:
    wanted = Path(path)
    inside = [root.resolve() for root in roots]
    for candidate in [wanted] if wanted.is_absolute() else [root / wanted for root in inside]:
        real = candidate.resolve()
        if any(real.is_relative_to(root) for root in inside) and real.exists():
            return real
    return None


_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
"""To go through a folder, for which it need not be readable."""


def open_file(path: Path) -> BinaryIO:
    """Open a file that `resolve` found, for reading.

    None of its folders, nor the file, may have become a link since: each is opened from within the one before.

    Raises:
        SourceError: it is no longer there, or no ordinary file.
    """
    try:
        folder = os.open(path.anchor, _FOLDER)
        for part in path.parts[1:-1]:
            folder = _step(part, folder, _FOLDER)
        # Without O_NONBLOCK the open of a pipe waits for whoever writes to it.
        descriptor = _step(path.name, folder, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise SourceError(f"`{path.name}` cannot be read") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"`{path.name}` is not a file")
    return os.fdopen(descriptor, "rb")


def _step(name: str, folder: int, flags: int) -> int:
    """Open `name` within an open folder, which is closed."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)
