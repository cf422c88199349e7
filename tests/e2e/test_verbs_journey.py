"""Pause a run on the real engine, resume it, and fork from its checkpoint: the numbers are those of one run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.states import JobState
from jobs.views import JobView
from ppo_client.client import PPOClient
from tests.support.embedded_service import ROOT, embedded_service, wait_for

pytestmark = pytest.mark.slow

STEPS = 8


def austen(name: str) -> dict[str, Any]:
    """The example spec, shortened."""
    spec = json.loads((ROOT / "examples" / "specs" / "austen-positive.json").read_text())
    spec["ppo"] = {"steps": STEPS, "batch_size": 16, "minibatch_size": 4, "ppo_epochs": 2}
    return {**spec, "name": name, "checkpoint": {"every_steps": 1, "keep_last": STEPS}}


def rewards(client: PPOClient, job: JobView) -> dict[int, float | None]:
    found = client.metrics(job.id, keys=["env/reward_mean"])
    return dict(zip(found.steps, found.series["env/reward_mean"], strict=True))


def test_pause_resume_and_fork_on_the_real_engine(tmp_path):
    with embedded_service(tmp_path / "home") as service, PPOClient(service.url) as client:
        job = client.submit(austen("paused"))
        wait_for(lambda: client.get(job.id).progress.step >= 2)
        client.pause(job.id)
        paused = wait_for(lambda: found if (found := client.get(job.id)).state is JobState.PAUSED else None)
        assert (paused.stop_reason, paused.last_checkpoint_step) == ("user_pause", paused.progress.step)
        at = paused.progress.step
        assert 2 <= at < STEPS

        same = client.fork(job.id, from_step=at, name="same")
        other = client.fork(
            job.id, from_step=at, overrides={"optimizer": {"learning_rate": 1e-3}, "kl": {"init_kl_coef": 0.5}}
        )
        fresh = client.fork(job.id, from_step=at, overrides={"model": {"value": {"shared": None, "separate": {}}}})
        client.resume(job.id)
        ended = [client.wait(found.id, timeout_seconds=240) for found in (job, same, other, fresh)]
        assert [found.state for found in ended] == [JobState.SUCCEEDED] * 4, [found.error for found in ended]

        whole = rewards(client, job)
        assert list(whole) == list(range(1, STEPS + 1))
        # Bit for bit: a fork without changes is the run itself.
        assert rewards(client, same) == {step: whole[step] for step in range(at + 1, STEPS + 1)}
        changed = rewards(client, other)
        assert list(changed) == list(range(at + 1, STEPS + 1))
        assert changed[at + 1] == whole[at + 1], "the first rollout is still that of the checkpoint's policy"
        assert changed[STEPS] != whole[STEPS]
        coef = client.metrics(other.id, keys=["objective/kl_coef"]).series["objective/kl_coef"]
        assert coef[0] == 0.5
        assert client.get(fresh.id).parent.carried == ["weights"]
        assert list(rewards(client, fresh)) == list(range(1, STEPS + 1))
