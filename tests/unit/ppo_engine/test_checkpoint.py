"""Checkpoints: complete or not there, and verified before use."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ppo_engine import checkpoint
from ppo_engine.config import ModelSource
from ppo_engine.errors import CheckpointCorrupt, DiskFull
from ppo_engine.models.loading import load_language_model, load_tokenizer
from ppo_engine.rundir import RunDir
from tests.support.tiny_models import tiny_llama

IDENTITY = {"spec": "s", "reference": "r"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("models")
    source = ModelSource(path=tiny_llama(root / "policy").name)
    return load_language_model(source, [root]).model, load_tokenizer(source, [root])


def save(run: RunDir, policy: Any, *, step: int = 10, attempt: int = 1) -> checkpoint.Saved:
    model, tokenizer = policy

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return checkpoint.save(
        run,
        step=step,
        attempt=attempt,
        identity=IDENTITY,
        values={"step": step, "kl_coef": 0.25},
        tensors={"value": {"weight": torch.ones(1, 4)}, "rng": {"torch": torch.get_rng_state()}},
        folders={"model": write},
    )


def test_what_was_saved_is_loaded(tmp_path: Path, policy: Any) -> None:
    run = RunDir(tmp_path)
    saved = save(run, policy)
    restored = checkpoint.load(saved.path, IDENTITY)
    assert (restored.values["step"], restored.values["kl_coef"]) == (10, 0.25)
    assert torch.equal(restored.tensors["value"]["weight"], torch.ones(1, 4))
    again = load_language_model(ModelSource(path=str(restored.model)), [restored.model]).model
    assert all(torch.equal(a, b) for a, b in zip(policy[0].parameters(), again.parameters(), strict=True))
    assert saved.size_bytes == sum(f.stat().st_size for f in saved.path.rglob("*") if f.is_file())
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000010-1"]


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "model/config.json", "value.safetensors", "state.json", "manifest.json"]
)
def test_damage_to_any_file_is_noticed_and_the_previous_checkpoint_used(
    tmp_path: Path, policy: Any, name: str, damage: Any
) -> None:
    run = RunDir(tmp_path)
    good, bad = save(run, policy, step=10), save(run, policy, step=20)
    if (name, damage) == ("manifest.json", damage_flip):
        manifest = json.loads((bad.path / name).read_text())
        manifest["files"]["state.json"]["size"] += 1
        (bad.path / name).write_text(json.dumps(manifest))
    else:
        damage(bad.path / name)
    with pytest.raises(CheckpointCorrupt):
        checkpoint.verify(bad.path)
    assert checkpoint.newest_valid(run) == good.path


def test_a_file_too_many_is_noticed(tmp_path: Path, policy: Any) -> None:
    saved = save(RunDir(tmp_path), policy)
    (saved.path / "extra.bin").write_bytes(b"x")
    with pytest.raises(CheckpointCorrupt, match=r"extra\.bin"):
        checkpoint.verify(saved.path)


@pytest.mark.parametrize("key", list(IDENTITY))
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, policy: Any, key: str) -> None:
    saved = save(RunDir(tmp_path), policy)
    with pytest.raises(CheckpointCorrupt, match=key):
        checkpoint.load(saved.path, IDENTITY | {key: "other"})


def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(
    tmp_path: Path, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    good = save(run, policy, step=10)

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(DiskFull):
        save(run, policy, step=20)
    assert list(run.checkpoints.iterdir()) == [good.path]
    checkpoint.verify(good.path)


def test_the_newest_is_the_highest_step_then_the_highest_attempt(tmp_path: Path, policy: Any) -> None:
    run = RunDir(tmp_path)
    for step, attempt in ((10, 1), (20, 1), (20, 2), (9, 3)):
        save(run, policy, step=step, attempt=attempt)
    names = [path.name for path in run.saved_checkpoints()]
    assert names == ["step-00000020-2", "step-00000020-1", "step-00000010-1", "step-00000009-3"]
    checkpoint.prune(run, 2)
    assert [path.name for path in run.saved_checkpoints()] == names[:2]


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path, policy: Any) -> None:
    saved = save(RunDir(tmp_path), policy)
    files = [path for path in saved.path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja", ".txt", ".model"}
    assert not [path for path in files if path.read_bytes()[:1] == b"\x80"]
