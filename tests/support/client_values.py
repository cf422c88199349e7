"""Valid values of the views, with overrides, for tests of the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.states import JobState
from jobs.views import JobEventView, JobView, MetricsView, Progress, SampleView

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job_view(**changes: Any) -> JobView:
    """A running job at step 4 of 10."""
    values: dict[str, Any] = {
        "id": "job_01",
        "name": "tiny",
        "state": JobState.RUNNING,
        "phase": "rollout",
        "done": False,
        "allowed_actions": ["cancel"],
        "spec": {"model": {"policy": {"path": "austen-2m"}}, "kl": {"adaptive": {"target": 6.0}}},
        "spec_hash": "0" * 64,
        "labels": {"team": "demo"},
        "attempt": 1,
        "max_attempts": 3,
        "progress": Progress(step=4, steps_total=10, percent=40.0, eta_seconds=75.0),
        "latest_metrics": {"env/reward_mean": 0.25, "objective/kl": 1.5},
        "stop_reason": None,
        "error": None,
        "last_checkpoint_step": None,
        "create_time": START,
        "start_time": START + timedelta(seconds=1),
        "end_time": None,
        "update_time": START + timedelta(seconds=66),
        "cancel_request_time": None,
        "queue": None,
        "etag": "1",
        "links": {},
    }
    return JobView.model_validate({**values, **changes})


def ended(state: JobState = JobState.SUCCEEDED, **changes: Any) -> JobView:
    """A job that has ended."""
    return job_view(state=state, done=True, phase=None, end_time=START + timedelta(seconds=100), **changes)


def event_view(seq: int, **changes: Any) -> JobEventView:
    """One journal line, `seq` seconds after the start."""
    values: dict[str, Any] = {
        "seq": seq,
        "time": START + timedelta(seconds=seq),
        "type": "claimed",
        "state": JobState.RUNNING,
        "attempt": 1,
        "message": "",
        "data": {},
    }
    return JobEventView.model_validate({**values, **changes})


def metrics_view(steps: int, **series: list[float | None]) -> MetricsView:
    """Steps 1..n, one second apart; without series, a reward of step / 10."""
    numbers = list(range(1, steps + 1))
    columns = series or {"env/reward_mean": [step / 10 for step in numbers]}
    times = [START + timedelta(seconds=step) for step in numbers]
    return MetricsView(job_id="job_01", steps=numbers, times=times, series=columns, downsampled=False)


def sample_view(prompt: str, score: float, step: int = 1, response: str = "good") -> SampleView:
    """One stored response."""
    return SampleView(
        step=step, index=0, prompt=prompt, response=response, score=score, components={}, kl=None,
        response_tokens=3, finished=True,
    )  # fmt: skip
