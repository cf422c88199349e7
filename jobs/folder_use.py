"""Folders of prompts that specs name: every row is looked at when the spec is, so that a run does not fail of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock

from jobs.errors import Problem
from jobs.plain import pointer
from jobs.problems import nearest, shown
from jobs.spec import JobSpec
from ppo_engine.config import PromptFolder
from ppo_engine.datasets.faults import Fault, FolderUnusable
from ppo_engine.datasets.folder import read_folder
from ppo_engine.datasets.layout import DataFile, data_files

_ONE_AT_A_TIME = Lock()
"""Reading takes a processor: many specs at once must not take all of the front door's."""


def folder_problems(spec: JobSpec, roots: Sequence[Path]) -> Iterator[Problem]:
    """What is wrong with the folders that a spec names, each bad row by its file and number."""
    for loc, prompts in spec.prompt_sets():
        if prompts.folder is None:
            continue
        for fault in _faults(prompts.folder, roots, chat=prompts.chat is not None):
            given = getattr(prompts.folder, fault.part)
            yield Problem(
                pointer=pointer((*loc, "folder", fault.part)),
                code=fault.code,
                detail=fault.detail,
                given=shown(given),
                allowed=list(fault.allowed) or None,
                suggestion=nearest(given, fault.allowed),
            )


def _faults(folder: PromptFolder, roots: Sequence[Path], *, chat: bool) -> tuple[Fault, ...]:
    try:
        files = data_files(folder, roots)
    except FolderUnusable as error:
        return error.faults
    with _ONE_AT_A_TIME:
        return _row_faults(folder, tuple(files), chat=chat)


@lru_cache(maxsize=64)
def _row_faults(folder: PromptFolder, files: tuple[DataFile, ...], *, chat: bool) -> tuple[Fault, ...]:
    """The files are part of the key with size and time: the same ones need not be read again."""
    try:
        for _ in read_folder(folder, files, chat=chat):
            pass
    except FolderUnusable as error:
        return error.faults
    return ()
