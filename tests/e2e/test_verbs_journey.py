"""Pause a run on the real engine, fork from its checkpoint, resume and stop it: the numbers are those of one run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.states import JobState
from jobs.views import JobView
from ppo_client.client import PPOClient
from tests.support.embedded_service import ROOT, embedded_service, wait_for

pytestmark = pytest.mark.slow

MORE = 2
"""Steps of every run after the pause."""


def austen(name: str) -> dict[str, Any]:
    """The example spec with small steps, and far more of them than the test waits for."""
    spec = json.loads((ROOT / "examples" / "specs" / "austen-positive.json").read_text())
    spec["ppo"] = {"steps": 400, "batch_size": 8, "minibatch_size": 4, "ppo_epochs": 1}
    return {**spec, "name": name, "checkpoint": {"every_steps": 50, "keep_last": 2}}


def rewards(client: PPOClient, job: JobView) -> dict[int, float | None]:
    found = client.metrics(job.id, keys=["env/reward_mean"])
    return dict(zip(found.steps, found.series["env/reward_mean"], strict=True))


def test_pause_resume_stop_and_fork_on_the_real_engine(tmp_path):
    with embedded_service(tmp_path / "home") as service, PPOClient(service.url) as client:
        job = client.submit(austen("paused"))
        wait_for(lambda: client.get(job.id).progress.step >= 1)
        client.pause(job.id)
        paused = wait_for(lambda: found if (found := client.get(job.id)).state is JobState.PAUSED else None)
        at = paused.progress.step
        assert (paused.stop_reason, paused.last_checkpoint_step) == ("user_pause", at)

        steps = {"ppo": {"steps": at + MORE}}
        hotter = {**steps, "optimizer": {"learning_rate": 1e-2}, "kl": {"init_kl_coef": 0.5}}
        same = client.fork(job.id, from_step=at, overrides=steps, name="same")
        other = client.fork(job.id, overrides=hotter)
        separate = {"model": {"value": {"shared": None, "separate": {}}}, "ppo": {"steps": 1}}
        fresh = client.fork(job.id, overrides=separate)
        assert client.get(fresh.id).parent.carried == ["weights"]
        ended = [client.wait(found.id, timeout_seconds=240) for found in (same, other, fresh)]
        assert [found.state for found in ended] == [JobState.SUCCEEDED] * 3, [found.error for found in ended]

        client.resume(job.id)
        wait_for(lambda: client.get(job.id).progress.step >= at + MORE)
        client.stop(job.id)
        stopped = client.wait(job.id, timeout_seconds=240)
        assert (stopped.state, stopped.stop_reason) == (JobState.SUCCEEDED, "user_stop")
        assert stopped.last_checkpoint_step == stopped.progress.step < 400

        whole, behind = rewards(client, job), range(at + 1, at + MORE + 1)
        assert list(whole) == list(range(1, stopped.progress.step + 1))
        # Bit for bit: what does not change a number goes on as the run itself.
        assert rewards(client, same) == {step: whole[step] for step in behind}
        changed = rewards(client, other)
        assert changed[at + 1] == whole[at + 1], "the first rollout is still that of the checkpoint's policy"
        assert changed[at + MORE] != whole[at + MORE]
        assert client.metrics(other.id, keys=["objective/kl_coef"]).series["objective/kl_coef"][0] == 0.5
        assert list(rewards(client, fresh)) == [1]
