"""A checkpoint's adapter, merged into the model it was trained on: a Hugging Face folder that needs nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ppo_engine import runtime
from ppo_engine.checkpoint import MODEL, seal, sync
from ppo_engine.config import ModelSource
from ppo_engine.errands import Exported, ExportWork
from ppo_engine.errors import CheckpointGone
from ppo_engine.models.conversion import without_gguf
from ppo_engine.models.loading import load_tokenizer
from ppo_engine.models.lora import merge
from ppo_engine.models.networks import load_policy
from ppo_engine.rundir import MANIFEST, PARTIAL_PREFIX, RunDir


def export(work: ExportWork, *, run: RunDir, roots: Sequence[Path], threads: int | None) -> Exported:
    """Write the merged model of a checkpoint; one that is there already is not made again.

    Raises:
        EngineError: the checkpoint is gone, or a model cannot be loaded.
    """
    checkpoint = run.root / work.folder
    if not (checkpoint / MODEL).is_dir():
        raise CheckpointGone(f"the checkpoint of step {work.step} is no longer kept")
    final = run.merged(work.folder)
    if not (final / MANIFEST).is_file():
        _drop_others(run)
        _make(work, checkpoint, final, run, roots, threads)
    return Exported(step=work.step, sha256=hashlib.sha256((final / MANIFEST).read_bytes()).hexdigest())


def _make(
    work: ExportWork, checkpoint: Path, final: Path, run: RunDir, roots: Sequence[Path], threads: int | None
) -> None:
    runtime.start(work.resources, threads=threads)
    folders = [*roots, run.converted]
    model = without_gguf(work.model, roots, run.converted)
    language = load_policy(model, folders)
    merge(language.model, ModelSource(path=MODEL), [checkpoint])
    partial = final.with_name(PARTIAL_PREFIX + final.name)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    language.model.save_pretrained(partial)
    load_tokenizer(model.policy, folders).save_pretrained(partial)
    files = {path.relative_to(partial).as_posix(): seal(path) for path in sorted(partial.rglob("*")) if path.is_file()}
    manifest = partial / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    sync(manifest)
    sync(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync(final.parent)


def _drop_others(run: RunDir) -> None:
    """Merged models whose checkpoint is no longer kept."""
    kept = {path.name for path in run.saved_checkpoints()}
    for folder in run.exports.iterdir() if run.exports.is_dir() else ():
        if folder.name.removeprefix(PARTIAL_PREFIX) not in kept:
            shutil.rmtree(folder, ignore_errors=True)
