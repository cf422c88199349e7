"""Runs that log to Weights & Biases, with the package itself: offline, and with a server that is not there."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.events import Failed, StepDone
from ppo_engine.rundir import RunDir
from tests.support.engine_program import of_type, run
from tests.support.tiny_models import tiny_llama
from tests.support.wandb_files import offline_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    return root


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """Where wandb's server would be: a port that takes connections and never answers. The home is an empty one."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_ERROR_REPORTING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def spec(steps: int, **wandb: Any) -> dict[str, Any]:
    return {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": [{"name": "mood", "rule": {"name": "sentiment"}}],
        "generation": {"max_new_tokens": 6},
        "ppo": {"steps": steps, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
        "checkpoint": {"every_steps": 1},
        "logging": {"samples_per_step": 2, "wandb": {"project": "p", "group": "g", "tags": ["a"]} | wandb},
    }


def test_an_offline_run_keeps_every_metric_and_goes_on_as_the_same_run(
    models: Path, tmp_path: Path, wandb_server: socket.socket
) -> None:
    out = RunDir(tmp_path / "job_1")
    code, before, error = run(models, out.root, spec(4, mode="offline"), "--attempt", "1", "--keep-checkpoints")
    assert code == 0, error
    for step in (3, 4):  # as if it had been killed in step 3
        shutil.rmtree(out.checkpoint(step, 1))
    code, after, error = run(models, out.root, spec(4, mode="offline"), "--resume", "--attempt", "2")
    assert code == 0, error
    first, second = offline_runs(out.root)
    assert first.run_id == second.run_id
    assert (first.config["ppo"]["steps"], first.config["logging"]["wandb"]["group"]) == (4, "g")

    logged = first.history + second.history
    steps = of_type(StepDone, before) + of_type(StepDone, after)
    assert [entry["step"] for entry in logged] == [step.step for step in steps] == [1, 2, 3, 4, 3, 4]
    for entry, step in zip(logged, steps, strict=True):
        assert {key: entry[key] for key in step.scalars} == pytest.approx(step.scalars)
        assert sum(entry["objective/kl_dist"]["values"]) == 4  # one value for each response of the batch
    table = json.loads((first.folder / "files" / logged[0]["samples"]["path"]).read_text())
    assert [row[table["columns"].index("response")] for row in table["data"]] == [
        sample.response for sample in steps[0].samples
    ]
    with pytest.raises(BlockingIOError):
        wandb_server.accept()  # nobody has called


@pytest.mark.usefixtures("wandb_server")
def test_a_run_without_a_key_ends_at_its_start_and_says_what_to_do(models: Path, tmp_path: Path) -> None:
    code, events, _ = run(models, tmp_path / "run", spec(1, mode="online"))
    assert code != 0
    (failed,) = of_type(Failed, events)
    assert (failed.code, failed.category, failed.retryable) == ("wandb_unavailable", "user", False)
    assert "WANDB_API_KEY" in failed.suggestion
    assert not of_type(StepDone, events)
