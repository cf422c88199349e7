"""Paths of a spec: nothing outside the roots is found, or opened after it was exchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppo_engine.sources import SourceError, open_file, resolve
from tests.support.hostile import HOSTILE_PATHS, root_with_ways_out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_with_ways_out(tmp_path / "root")


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_what_is_not_inside_is_not_found(root: Path, path: str) -> None:
    with pytest.raises(SourceError):
        resolve(path, [root])


def test_a_root_beside_with_the_same_beginning_is_another(root: Path) -> None:
    twin = root.with_name("root-2")
    twin.mkdir()
    (twin / "p.txt").touch()
    with pytest.raises(SourceError):
        resolve(f"../{twin.name}/p.txt", [root])
    with pytest.raises(SourceError):
        resolve(str(twin / "p.txt"), [root])


def test_what_is_inside_is_opened(root: Path) -> None:
    for path in ("sub/p.txt", "sub/../sub/p.txt", str(root / "sub/p.txt"), "up/root/sub/p.txt"):
        with open_file(resolve(path, [root])) as file:
            assert file.read() == b"prompt"


def test_a_file_that_became_a_link_is_not_opened(root: Path) -> None:
    found = resolve("sub/p.txt", [root])
    found.unlink()
    found.symlink_to(root.parent / "secret.txt")
    with pytest.raises(SourceError, match="cannot be read"):
        open_file(found)


def test_a_folder_that_became_a_link_is_not_gone_through(root: Path) -> None:
    found = resolve("sub/p.txt", [root])
    found.parent.rename(root / "was")
    (root.parent / "p.txt").write_text("secret")
    (root / "sub").symlink_to(root.parent)
    assert found.read_text() == "secret"
    with pytest.raises(SourceError, match="cannot be read"):
        open_file(found)


def test_a_pipe_is_no_file_and_nobody_waits_for_its_writer(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(SourceError, match="is not a file"):
        open_file(resolve("pipe", [root]))


def test_refusals_leave_no_file_open(root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("sub", "sub/p.txt"):
        found = resolve(path, [root])
        if found.is_file():
            found.unlink()
        with pytest.raises(SourceError):
            open_file(found)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
