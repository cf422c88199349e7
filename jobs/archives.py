"""What can be downloaded as a tar: checkpoints, models for others to load, TensorBoard folders.

Each is a list of members in a fixed order, with a digest that says all of their bytes: that of a `manifest.json` among
them, which holds size and SHA-256 of every other member. So a download can go on where it broke, and be verified.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jobs.auth import Principal
from jobs.db import Database
from jobs.errors import InvalidArgument, JobNotFound, Problem
from jobs.history import checkpoint, checkpoint_dir, owned
from jobs.model_card import model_card
from jobs.tables import JobMetrics
from ppo_engine.rundir import MANIFEST, RunDir

_BLOCK_BYTES = 1 << 20
_MODEL = "model"
_ADAPTER_SETTINGS = "adapter_config.json"


class ExportForm(StrEnum):
    """What of a trained model is wanted."""

    MERGED = "merged"
    """The whole model; adapters are merged into it."""
    FULL = "full"
    """The whole model of a run that trained all of it."""
    ADAPTER = "adapter"
    """The adapter of a LoRA run."""


class ExportNotMade(Exception):
    """A merged model is wanted that nobody has made yet."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the adapter of step {step} is not merged yet")
        self.step = step


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive: on disk, or made just now."""

    name: str
    size: int
    source: Path | bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """What an archive is made of."""

    members: Sequence[Member]
    sha256: str
    """Of `manifest.json`."""
    file_name: str


def checkpoint_bundle(db: Database, principal: Principal, job_id: str, step: int, runs_dir: Path) -> Bundle:
    """A checkpoint as it is on disk; raises JobNotFound if it is not kept."""
    view = checkpoint(db, principal, job_id, step)
    folder = checkpoint_dir(db, principal, job_id, step, runs_dir)
    members = list(_members(folder))
    if not members:
        raise JobNotFound(f"the job keeps no checkpoint of step {step}")
    return Bundle(members, view.sha256, f"{job_id}-step-{step}.tar")


def export_bundle(
    db: Database, principal: Principal, job_id: str, wanted: str, form: ExportForm, runs_dir: Path
) -> Bundle:
    """The model of a checkpoint as a Hugging Face folder or PEFT adapter, with a card that says how it was made.

    Raises:
        JobNotFound: no such job, or no such checkpoint.
        InvalidArgument: the run has no model in this form.
        ExportNotMade: its adapter is not merged yet; `jobs.exporting.ask_export` has it done.
    """
    step = choose_step(db, principal, job_id, wanted)
    folder = checkpoint_dir(db, principal, job_id, step, runs_dir)
    adapter = (folder / _MODEL / _ADAPTER_SETTINGS).is_file()
    _check_form(form, adapter=adapter)
    merged = adapter and form is ExportForm.MERGED
    card = _card(db, principal, job_id, step, adapter=adapter and not merged)
    model = RunDir(runs_dir / job_id).merged(folder.name) if merged else folder / _MODEL
    if merged and not (model / MANIFEST).is_file():
        raise ExportNotMade(step)
    digests = _model_digests(model if merged else folder)
    members = [member for member in _members(model) if member.name in digests and member.name != "README.md"]
    members.append(Member("README.md", len(card), card))
    digests["README.md"] = hashlib.sha256(card).hexdigest()
    return _sealed(members, digests, f"{job_id}-step-{step}-{form}.tar")


def tensorboard_bundle(db: Database, principal: Principal, job_id: str, runs_dir: Path) -> Bundle:
    """The event files of a run up to now; raises JobNotFound, also where there are none."""
    with db.read() as session:
        owned(session, principal, job_id)
    members = list(_members(RunDir(runs_dir / job_id).tensorboard))
    if not members:
        raise JobNotFound("the job has written no TensorBoard files")
    digests = {member.name: _digest(member) for member in members}
    return _sealed(members, digests, f"{job_id}-tensorboard.tar")


def choose_step(db: Database, principal: Principal, job_id: str, wanted: str) -> int:
    """The step that `best`, `last` or a number means.

    Raises:
        JobNotFound: no such job, or it has no such checkpoint.
        InvalidArgument: none of these words.
    """
    with db.read() as session:
        job = owned(session, principal, job_id)
        named = {"best": job.best_checkpoint_step, "last": job.last_checkpoint_step}
    if wanted in named:
        step = named[wanted]
        if step is None:
            raise JobNotFound(f"the job has no {wanted} checkpoint")
        return step
    if not (wanted.isascii() and wanted.isdecimal() and len(wanted) <= 18):
        problem = Problem(pointer="/step", code="unknown_value", detail="must be `best`, `last` or a step")
        raise InvalidArgument("`step` must be `best`, `last` or a step", problems=[problem])
    return int(wanted)


def _check_form(form: ExportForm, *, adapter: bool) -> None:
    if form is ExportForm.MERGED or (form is ExportForm.ADAPTER) == adapter:
        return
    detail = (
        "the run trained an adapter: ask for `adapter` or `merged`"
        if adapter
        else "the run trained no adapter: ask for `full` or `merged`"
    )
    problem = Problem(pointer="/form", code="form_unavailable", detail=detail, given=form)
    raise InvalidArgument(detail, problems=[problem])


def _members(folder: Path) -> Iterator[Member]:
    """The regular files of a folder, in the order of their names; links are left out."""
    for path in [] if folder.is_symlink() else sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield Member(path.relative_to(folder).as_posix(), path.stat().st_size, path)


def _model_digests(folder: Path) -> dict[str, str]:
    """Digests of a model's files, by a checkpoint's manifest or by the model's own."""
    files = _manifest(folder)
    inside = [name for name in files if name.startswith(f"{_MODEL}/")] or list(files)
    return {name.removeprefix(f"{_MODEL}/"): files[name]["sha256"] for name in inside}


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        files: Mapping[str, Any] = json.loads((folder / MANIFEST).read_bytes())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise JobNotFound("this checkpoint is no longer kept") from error
    return files


def _sealed(members: Sequence[Member], digests: Mapping[str, str], file_name: str) -> Bundle:
    """The members behind a manifest of them."""
    files = {member.name: {"size": member.size, "sha256": digests[member.name]} for member in members}
    manifest = json.dumps({"files": files}, indent=1, sort_keys=True).encode()
    whole = [Member(MANIFEST, len(manifest), manifest), *members]
    return Bundle(whole, hashlib.sha256(manifest).hexdigest(), file_name)


def _digest(member: Member) -> str:
    """Of the first `size` bytes: a run may append meanwhile."""
    digest, left = hashlib.sha256(), member.size
    assert isinstance(member.source, Path)  # noqa: S101 - narrows a type
    with member.source.open("rb") as file:
        while left and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _card(db: Database, principal: Principal, job_id: str, step: int, *, adapter: bool) -> bytes:
    this = JobMetrics.job_id == job_id, JobMetrics.step == step
    with db.read() as session:
        job = owned(session, principal, job_id)
        scalars = session.scalar(sa.select(JobMetrics.scalars).where(*this)) or {}
        return model_card(job.spec, job_id=job.id, step=step, scalars=scalars, adapter=adapter).encode()
