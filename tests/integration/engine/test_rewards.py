"""Whole runs with several rewards: a reward model, rules, a reward server, shadows, and responses without a score."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from ppo_engine.config import TrainConfig
from ppo_engine.egress import Egress, RewardHost
from ppo_engine.errors import RewardHostForbidden, RewardUnavailable
from ppo_engine.events import Event, Finished, Sample, StepDone, parse
from ppo_engine.program.run import Run, RunOptions
from ppo_engine.rundir import RunDir
from tests.support.source_tree import ROOT
from tests.support.tiny_models import byte_tokenizer, tiny_classifier, tiny_llama

pytestmark = pytest.mark.slow

JUDGE = {"name": "judge", "weight": 2.0, "model": {"source": {"path": "judge"}, "batch_size": 2}}
SHORT = {"name": "short", "weight": -0.5, "rule": {"name": "length", "params": {"target": 3}}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tiny_llama(root / "policy")
    tiny_classifier(root / "judge", seed=1)
    lines = [{"prompt": f"{n} and {n} make ", "answer": str(2 * n)} for n in range(6)] + [{"prompt": "Why? "}]
    (root / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """examples/reward_server.py."""
    command = [sys.executable, str(ROOT / "examples" / "reward_server.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()
        process.terminate()


def spec(rewards: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"policy": {"path": "policy"}},
        "prompts": {"inline": ["The movie was", "My dinner", "It"]},
        "rewards": rewards,
        "generation": {"max_new_tokens": 8},
        "ppo": {"steps": 2, "batch_size": 6, "minibatch_size": 3, "ppo_epochs": 1},
        "optimizer": {"learning_rate": 1e-3},
        "logging": {"samples_per_step": 6},
    }
    return base | changes


def run(root: Path, out: Path, wanted: dict[str, Any], *options: str) -> list[Event]:
    """A run as a process of its own."""
    out.mkdir()
    (out / "wanted.json").write_text(json.dumps(wanted))
    fixed = ["run", str(out / "wanted.json"), "--out", str(out), "--root", str(root), "--threads", "1"]
    command = [sys.executable, "-m", "ppo_engine", *fixed, *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [parse(line) for line in done.stdout.splitlines()]


def train(root: Path, out: Path, wanted: dict[str, Any], *hosts: str) -> list[Event]:
    """A run in this process."""
    events: list[Event] = []
    egress = Egress([RewardHost.parse(host) for host in hosts])
    options = RunOptions(out=RunDir(out), roots=[root], threads=1, egress=egress)
    Run(TrainConfig.model_validate(wanted), options, events.append)()
    return events


def steps(events: list[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def samples(events: list[Event]) -> list[Sample]:
    return [sample for step in steps(events) for sample in step.samples]


def test_weights_add_up_and_a_shadow_changes_no_weight_of_the_policy(models: Path, server: str, tmp_path: Path) -> None:
    shadow = {"name": "news", "weight": 100.0, "shadow": True, "http": {"url": server, "batch_size": 2}}
    events = run(models, tmp_path / "with", spec([JUDGE, SHORT, shadow]), "--reward-host", "127.0.0.1")
    assert isinstance(events[-1], Finished)
    for step in steps(events):
        means = {name: step.scalars[f"env/reward/{name}_mean"] for name in ("judge", "short", "news")}
        assert step.scalars["env/reward_mean"] == pytest.approx(2.0 * means["judge"] - 0.5 * means["short"], abs=1e-6)
        assert 0.0 < means["news"] <= 1.0
        assert step.scalars["env/reward_errors"] == 0.0
    judge = AutoModelForSequenceClassification.from_pretrained(models / "judge").eval()
    tokenizer = byte_tokenizer()
    assert len(samples(events)) == 12
    for sample in samples(events):
        ids = torch.tensor([tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sample.prompt + sample.response))])
        with torch.no_grad():
            alone = judge(input_ids=ids).logits.item()
        words = len(sample.response.split())
        length = max(-1.0, 1.0 - abs(words - 3) / 3)
        assert sample.score == pytest.approx(2.0 * alone - 0.5 * length, abs=1e-4)

    run(models, tmp_path / "without", spec([JUDGE, SHORT]))
    weights = [RunDir(tmp_path / name).checkpoint(2, 1) / "model/model.safetensors" for name in ("with", "without")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_reward_server_trains(models: Path, server: str, tmp_path: Path) -> None:
    events = train(models, tmp_path, spec([{"name": "news", "http": {"url": server}}]), "127.0.0.1")
    for sample in samples(events):
        words = sample.response.lower().split()
        new = set(words) - set(sample.prompt.lower().split())
        assert sample.score == pytest.approx(len(new) / len(words))


def test_a_reward_server_that_may_not_be_called_fails_before_training(
    models: Path, server: str, tmp_path: Path
) -> None:
    with pytest.raises(RewardHostForbidden, match=r"127\.0\.0\.1:\d+ is at 127\.0\.0\.1") as caught:
        train(models, tmp_path, spec([{"name": "news", "http": {"url": server}}]), "elsewhere")
    assert (caught.value.code, caught.value.category, caught.value.retryable) == (
        "reward_host_forbidden",
        "user",
        False,
    )
    assert "PPO_REWARD_HOSTS" in caught.value.advice


def test_a_reward_server_that_is_down_fails_the_attempt_and_not_the_job(models: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    with pytest.raises(RewardUnavailable, match="no connection") as caught:
        train(models, tmp_path, spec([{"name": "gone", "http": {"url": url, "retries": 0}}]), "127.0.0.1")
    assert (caught.value.category, caught.value.retryable) == ("reward", True)


@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_a_run_goes_on_without_the_responses_that_have_no_score(models: Path, tmp_path: Path, policy: str) -> None:
    numeric = {"name": "sum", "on_error": policy, "max_error_rate": 0.5, "rule": {"name": "numeric"}}
    wanted = spec(
        [numeric, SHORT],
        prompts={"file": {"path": "sums.jsonl"}, "shuffle": False},
        ppo={"steps": 3, "batch_size": 7, "minibatch_size": 4, "ppo_epochs": 1},
        logging={"samples_per_step": 7},
    )
    events = train(models, tmp_path, wanted)
    assert isinstance(events[-1], Finished)
    for step in steps(events):
        assert step.scalars["env/reward_errors"] == pytest.approx(1 / 7)
        (lost,) = [sample for sample in step.samples if sample.prompt == "Why? "]
        assert set(lost.components) == {"short"}
        counted = [sample.score for sample in step.samples if policy == "zero" or sample is not lost]
        assert step.scalars["env/reward_mean"] == pytest.approx(sum(counted) / len(counted), abs=1e-6)
