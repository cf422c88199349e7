"""Settings come from the environment and mean the same from every folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.settings import DomainSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PPO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_lie_under_one_folder(tmp_path: Path) -> None:
    settings = DomainSettings()
    home = tmp_path / "var"
    assert settings.home == home
    assert settings.database_url == f"sqlite:///{home}/ppo.db"
    assert settings.model_roots == [home / "models"]
    assert settings.run_dir("job_1").root == home / "runs" / "job_1"


def test_everything_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PPO_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("PPO_DATABASE_URL", "postgresql://u:hunter2@h/d")
    monkeypatch.setenv("PPO_MODEL_ROOTS", os.pathsep.join(["/a", "/b"]))
    monkeypatch.setenv("PPO_KEY_PEPPER", "hunter3")
    settings = DomainSettings()
    assert settings.model_roots == [Path("/a"), Path("/b")]
    assert settings.runs_dir == tmp_path / "h" / "runs"
    assert "hunter" not in repr(settings)
