from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from ppo_engine.errands import ErrandKind
from ppo_engine.rundir import RunDir
from worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_HOME", str(tmp_path))


def test_the_default_is_the_embedded_profile() -> None:
    settings = WorkerSettings()
    assert settings.embedded
    assert settings.poll_interval_seconds == 0.5
    assert settings.queue_names == ["default"]
    assert settings.heartbeat_seconds < settings.fence_seconds < settings.lease_seconds


def test_a_broker_makes_it_a_cluster() -> None:
    settings = WorkerSettings(broker_url="redis://:hunter22@broker/0", queues="cpu,h200")
    assert not settings.embedded
    assert settings.poll_interval_seconds == 5.0
    assert settings.queue_names == ["cpu", "h200"]
    assert "hunter22" not in repr(settings)


def test_a_fence_beyond_the_lease_is_refused() -> None:
    with pytest.raises(ValidationError, match="fence_seconds"):
        WorkerSettings(lease_seconds=30, fence_seconds=30)
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        WorkerSettings(heartbeat_seconds=40, fence_seconds=40)


def test_the_engine_gets_no_credentials_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_DATABASE_URL", "postgresql://ppo:s3cr3t@db/ppo")
    monkeypatch.setenv("PPO_BROKER_URL", "redis://:s3cr3t@broker/0")
    monkeypatch.setenv("PPO_KEY_PEPPER", "s3cr3t")
    monkeypatch.setenv("PGPASSWORD", "s3cr3t")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("HF_HOME", "cache")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    settings = WorkerSettings()
    env = settings.engine_env(threads=3)
    assert "s3cr3t" not in " ".join(env.values())
    assert not [name for name in env if name.startswith("PPO_")]
    assert (env["HF_HOME"], env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]) == ("cache", "1", "3")
    assert env["GOMP_SPINCOUNT"] == "7"
    assert env["WANDB_API_KEY"] == "0123456789abcdef"
    assert settings.engine_secrets() == ["hf_0123456789", "0123456789abcdef"]


def test_the_engines_command_line(tmp_path: Path) -> None:
    settings = WorkerSettings(model_roots=[Path("a"), Path("b")], datasets_dir=tmp_path / "sets")
    run_dir = RunDir(tmp_path / "runs" / "job_1")
    command = settings.run_arguments(run_dir, attempt=4, checkpoint="checkpoints/step-00000010-3", threads=2)
    assert command[0] == str(run_dir.spec)
    assert command[command.index("--out") + 1] == str(run_dir.root)
    assert command[command.index("--attempt") + 1] == "4"
    assert command[command.index("--resume") + 1] == str(run_dir.checkpoint(10, 3))
    assert [command[i + 1] for i, part in enumerate(command) if part == "--root"] == ["a", "b", f"{tmp_path}/sets"]
    assert "--keep-checkpoints" in command
    assert "--resume" not in settings.run_arguments(run_dir, attempt=1, checkpoint=None, threads=2)


def test_reward_hosts_reach_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PPO_REWARD_HOSTS", "localhost, judge:8765,::1,")
    monkeypatch.setenv("PPO_REWARD_TOKEN_FILE", str(tmp_path / "token"))
    run_dir = RunDir(tmp_path / "runs" / "job_1")
    command = WorkerSettings().run_arguments(run_dir, attempt=1, checkpoint=None, threads=2)
    hosts = [command[i + 1] for i, part in enumerate(command) if part == "--reward-host"]
    assert hosts == ["localhost", "judge:8765", "::1"]
    assert command[command.index("--reward-token-file") + 1] == str(tmp_path / "token")


def test_without_settings_no_reward_host_is_named(tmp_path: Path) -> None:
    command = WorkerSettings().run_arguments(RunDir(tmp_path), attempt=1, checkpoint=None, threads=2)
    assert not [part for part in command if part.startswith("--reward")]


def test_a_reward_host_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPO_REWARD_HOSTS", "http://judge/")
    with pytest.raises(ValidationError, match="is not HOST or HOST:PORT"):
        WorkerSettings()


def test_the_advertised_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings().advertised_host == "127.0.0.1"
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert WorkerSettings(metrics_host="0.0.0.0").advertised_host == "node7"
    assert WorkerSettings(metrics_host="0.0.0.0", metrics_advertise_host="w.example").advertised_host == "w.example"


def test_only_what_runs_a_checked_spec_may_read_datasets(tmp_path: Path) -> None:
    """Those of all owners lie in one folder: the front door has checked what a spec names, and nothing of others."""
    settings = WorkerSettings(home=tmp_path, model_roots=[tmp_path / "models"])
    for kind in ErrandKind:
        roots = settings.errand_arguments(kind, tmp_path / "request.json")
        assert (str(settings.datasets_dir) in roots) == (kind in (ErrandKind.PROBE, ErrandKind.VERIFY_RESUME))


def test_a_replay_of_steps_has_more_time_than_other_errands(tmp_path: Path) -> None:
    settings = WorkerSettings(home=tmp_path, errand_seconds=3, verify_seconds=7)
    limits = {kind: settings.errand_limit_seconds(kind) for kind in ErrandKind}
    assert limits == {**dict.fromkeys(ErrandKind, 3), ErrandKind.VERIFY_RESUME: 7}
