"""Checkpoints: written atomically, verified before they are read, and enough to resume bit for bit on the CPU.

A checkpoint appears under its final name only when every byte of it is on disk: temporary folder of this attempt ->
fsync each file -> manifest with sizes and sha256 -> fsync the folder -> rename -> fsync the parent. Nothing in it is
a pickle: safetensors and JSON. The folder `model/` in it is an ordinary Hugging Face model, or a PEFT adapter.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppo_engine.errors import CheckpointCorrupt, DiskFull
from ppo_engine.rundir import MANIFEST, PARTIAL_PREFIX, RunDir

FORMAT = 1
STATE = "state.json"
MODEL, AVERAGE, CRITIC = "model", "ema", "critic"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Saved:
    """A durable checkpoint."""

    path: Path
    size_bytes: int
    sha256: str
    """Digest of the manifest."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A verified checkpoint, read."""

    values: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    folder: Path

    @property
    def model(self) -> Path:
        """The policy's folder in it."""
        return self.folder / MODEL


def save(
    run: RunDir,
    *,
    step: int,
    attempt: int,
    identity: Mapping[str, Any],
    values: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
    folders: Mapping[str, Callable[[Path], None]],
) -> Saved:
    """Write one checkpoint; on return it is durable and complete.

    Args:
        identity: what the run is (digest of its spec, fingerprint of its reference); `load` compares it.
        values: JSON state.
        tensors: file stem -> tensors.
        folders: name of a folder -> what writes a model into it.

    Raises:
        DiskFull: no space; nothing is left behind and older checkpoints are untouched.
    """
    final = run.checkpoint(step, attempt)
    partial = run.checkpoints / f"{PARTIAL_PREFIX}{final.name}-{os.getpid()}"
    with _cleaned_up(partial):
        partial.mkdir(parents=True)
        for name, write in folders.items():
            write(partial / name)
        for stem, group in tensors.items():
            save_file({k: t.contiguous().cpu() for k, t in group.items()}, partial / f"{stem}.safetensors")
        state = {"format": FORMAT, "identity": dict(identity), "versions": versions(), **values}
        (partial / STATE).write_text(json.dumps(state, indent=1))
        return _publish(partial, final, step=step, attempt=attempt)


@contextmanager
def _cleaned_up(partial: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if _is_disk_full(error):
            raise DiskFull(f"no space for a checkpoint in {partial.parent}") from error
        raise


def _is_disk_full(error: BaseException) -> bool:
    full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return full or (isinstance(error, SafetensorError) and "No space left" in str(error))


def _publish(partial: Path, final: Path, *, step: int, attempt: int) -> Saved:
    files = {str(path.relative_to(partial)): seal(path) for path in sorted(partial.rglob("*")) if path.is_file()}
    manifest = json.dumps({"format": FORMAT, "step": step, "attempt": attempt, "files": files}, indent=1).encode()
    (partial / MANIFEST).write_bytes(manifest)
    sync(partial / MANIFEST)
    for folder in [path for path in partial.rglob("*") if path.is_dir()] + [partial]:
        sync(folder)
    if final.exists():  # the same attempt resumed at this very step: its own earlier copy
        shutil.rmtree(final)
    partial.rename(final)
    sync(final.parent)
    size = sum(entry["size"] for entry in files.values()) + len(manifest)
    return Saved(final, size, hashlib.sha256(manifest).hexdigest())


def seal(path: Path) -> dict[str, Any]:
    """Fsync a file; returns its size and digest."""
    path.chmod(0o644)  # safetensors makes private files, and the front door may run as another user
    sync(path)
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def sync(path: Path) -> None:
    """Have a file or folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of the libraries that decide the bits of a number."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def verify(folder: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointCorrupt: something is missing, cut short, changed, or not in the manifest.
    """
    manifest = _read_json(folder / MANIFEST)
    files = manifest.get("files", {})
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if present != set(files):
        odd = ", ".join(sorted(present ^ set(files))[:3])
        raise CheckpointCorrupt(f"{folder.name}: files differ from the manifest: {odd}")
    for name, entry in files.items():
        path = folder / name
        if path.stat().st_size != entry["size"] or _sha256(path) != entry["sha256"]:
            raise CheckpointCorrupt(f"{folder.name}: {name} does not match the manifest")


def load(folder: Path, identity: Mapping[str, Any]) -> Restored:
    """Verify and read a checkpoint.

    Raises:
        CheckpointCorrupt: damaged, of another format, or of another run.
    """
    verify(folder)
    state = _read_json(folder / STATE)
    if state.get("format") != FORMAT:
        raise CheckpointCorrupt(f"{folder.name}: format {state.get('format')}, this engine reads {FORMAT}")
    for key, wanted in identity.items():
        if state["identity"].get(key) != wanted:
            raise CheckpointCorrupt(f"{folder.name} belongs to another run: its {key} differs")
    tensors = {path.stem: load_file(path) for path in folder.glob("*.safetensors")}
    return Restored(state, tensors, folder)


def read_values(folder: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint.

    Raises:
        CheckpointCorrupt: it cannot be read.
    """
    return _read_json(folder / STATE)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointCorrupt(f"{path.parent.name}: {path.name} cannot be read") from error
    return content


def newest_valid(run: RunDir) -> Path | None:
    """The newest checkpoint that verifies; damaged ones are passed over."""
    for folder in run.saved_checkpoints():
        try:
            verify(folder)
        except CheckpointCorrupt:
            continue
        return folder
    return None


def prune(run: RunDir, keep_last: int, keep_best: int = 0) -> None:
    """Remove all but the newest and the best checkpoints. For runs without a service, which prunes by its own rows."""
    saved = run.saved_checkpoints()
    ranked = [(score, folder) for folder in saved if (score := read_values(folder).get("score")) is not None]
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    best = [folder for _, folder in ranked[:keep_best]]
    for folder in saved[keep_last:]:
        if folder not in best:
            doomed = folder.with_name(f".trash-{folder.name}")
            folder.rename(doomed)
            shutil.rmtree(doomed)
