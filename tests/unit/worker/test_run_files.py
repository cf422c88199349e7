from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppo_engine.config import TrainConfig
from ppo_engine.rundir import RunDir
from worker import run_files

CONFIG = TrainConfig.model_validate(
    {
        "model": {"policy": {"path": "m"}},
        "prompts": {"inline": ["Grüße"]},
        "rewards": [{"name": "s", "rule": {"name": "sentiment"}}],
        "ppo": {"steps": 2},
    }
)


KEPT = ["checkpoints/step-00000001-1", "checkpoints/step-00000002-1"]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    for name in ("step-00000001-1", "step-00000002-1"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "state.json").write_text("{}")
    return run


def checkpoints(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_the_spec_that_is_written_is_the_spec(run_dir: RunDir) -> None:
    run_files.prepare(run_dir, CONFIG, attempt=2, kept=KEPT)
    assert TrainConfig.model_validate_json(run_dir.spec.read_text()) == CONFIG
    assert json.loads(run_dir.spec.read_text())["prompts"]["inline"] == ["Grüße"]
    assert [path.name for path in run_dir.root.iterdir() if path.name.startswith(".")] == []


def test_deleting_and_setting_aside(run_dir: RunDir) -> None:
    run_files.delete_checkpoints(run_dir, ["checkpoints/step-00000001-1"])
    assert checkpoints(run_dir) == ["step-00000002-1"]
    run_files.quarantine_checkpoint(run_dir, "checkpoints/step-00000002-1")
    assert checkpoints(run_dir) == [".corrupt-step-00000002-1"]
    assert run_dir.saved_checkpoints() == []


def test_a_deletion_cut_short_is_finished_at_the_next_start(run_dir: RunDir) -> None:
    (run_dir.checkpoints / "step-00000001-1").rename(run_dir.checkpoints / ".trash-step-00000001-1")
    run_files.prepare(run_dir, CONFIG, attempt=2, kept=KEPT)
    assert checkpoints(run_dir) == ["step-00000002-1"]


def test_checkpoints_that_the_database_does_not_know_are_cleared_away(run_dir: RunDir) -> None:
    for name in (".partial-step-00000003-1-77", "step-00000003-1", ".corrupt-step-00000004-1"):
        (run_dir.checkpoints / name).mkdir()
    run_files.prepare(run_dir, CONFIG, attempt=2, kept=KEPT[1:])
    assert checkpoints(run_dir) == [".corrupt-step-00000004-1", "step-00000002-1"]


def test_what_a_later_attempt_made_is_not_cleared_away(run_dir: RunDir) -> None:
    later = {".partial-step-00000004-2-77", ".trash-step-00000003-2", "step-00000003-2", "step-00000003-11"}
    for name in later:
        (run_dir.checkpoints / name).mkdir()
    run_files.prepare(run_dir, CONFIG, attempt=2, kept=[])
    assert set(checkpoints(run_dir)) == later


@pytest.mark.parametrize(
    "folder",
    ["", ".", "..", "checkpoints", "checkpoints/..", "../other", "checkpoints/../../other", "/etc", "tensorboard"],
)
def test_nothing_else_can_be_deleted(run_dir: RunDir, folder: str) -> None:
    other = run_dir.root.parent / "other"
    other.mkdir()
    (run_dir.tensorboard).mkdir()
    run_files.delete_checkpoints(run_dir, [folder])
    assert checkpoints(run_dir) == ["step-00000001-1", "step-00000002-1"]
    assert other.is_dir()
    assert run_dir.tensorboard.is_dir()


def test_a_link_is_not_followed(run_dir: RunDir) -> None:
    other = run_dir.root.parent / "other"
    other.mkdir()
    (run_dir.checkpoints / "step-00000003-1").symlink_to(other)
    run_files.delete_checkpoints(run_dir, ["checkpoints/step-00000003-1"])
    assert other.is_dir()
    assert "step-00000003-1" in checkpoints(run_dir)


def test_a_folder_that_is_gone_is_no_error(run_dir: RunDir) -> None:
    run_files.delete_checkpoints(run_dir, ["checkpoints/step-00000009-1"])
    assert len(checkpoints(run_dir)) == 2
