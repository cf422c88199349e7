"""Engine work that the service does while the client waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from jobs.errand_views import ErrandState, ErrandView
from ppo_client.errors import ClientError
from ppo_client.pages import pages
from ppo_client.transport import Transport
from ppo_engine.errands import ErrandKind, Generation, RewardPreview
from ppo_engine.verification import Verification

_LOOK_SECONDS = 20.0
"""Longest wait within one request: less than what the transport bears."""


class ErrandTimeout(ClientError):
    """The answer did not come in time; `errand_id` leads to it later."""

    def __init__(self, message: str, errand_id: str) -> None:
        super().__init__(message)
        self.errand_id = errand_id


class ErrandFailed(ClientError):
    """The engine could not do what was asked."""


class Errands:
    """The part of `PPOClient` whose answers an engine has to work for."""

    _http: Transport

    def preview_reward(
        self,
        rewards: Sequence[Mapping[str, Any]],
        texts: Sequence[Mapping[str, Any]],
        *,
        queue: str = "default",
        timeout_seconds: float = 300.0,
    ) -> RewardPreview:
        """Score up to 256 texts (`prompt`, `response`, `record`) with the rewards of a spec.

        Raises:
            ErrandTimeout: not done after `timeout_seconds`.
            ErrandFailed: the engine could not do it.
        """
        body = {"rewards": list(rewards), "texts": list(texts), "queue": queue}
        done = self._errand("/v1/rewards/preview", body, timeout_seconds)
        if done.preview is None:
            raise ErrandFailed(_reason(done))
        return done.preview

    def generate(
        self,
        job_id: str,
        prompts: Sequence[str],
        *,
        step: str | int = "last",
        compare_to: Sequence[str | int] = (),
        score: bool = False,
        timeout_seconds: float = 300.0,
        **options: Any,
    ) -> Generation:
        """Answer prompts with a job's policy.

        Args:
            step: `last`, `best`, the step of a checkpoint, or `base`: before training.
            compare_to: more of these.
            score: score the responses with the job's rewards.
            options: other fields of the request: records, samples_per_prompt, max_new_tokens, temperature, stop, seed.

        Raises:
            ErrandTimeout: not done after `timeout_seconds`.
            ErrandFailed: the engine could not do it.
        """
        body = {"prompts": list(prompts), "step": step, "compare_to": list(compare_to), "score": score, **options}
        done = self._errand(f"/v1/jobs/{quote(job_id, safe='')}/generate", body, timeout_seconds)
        if done.generation is None:
            raise ErrandFailed(_reason(done))
        return done.generation

    def verify_resume(
        self,
        job_id: str,
        *,
        step: int | None = None,
        steps: int = 2,
        twice: bool = False,
        timeout_seconds: float = 1800.0,
    ) -> Verification:
        """Replay steps of a job from one of its checkpoints, and compare them with what it recorded.

        Args:
            step: of the checkpoint; by default the newest with enough recorded steps after it.
            steps: to replay, at most 20.
            twice: replay twice and compare the two, where the records are gone.

        Raises:
            ErrandTimeout: not done after `timeout_seconds`.
            ErrandFailed: the engine could not do it.
        """
        body = {"steps": steps, "twice": twice, **({} if step is None else {"step": step})}
        done = self._errand(f"/v1/jobs/{quote(job_id, safe='')}/verify-resume", body, timeout_seconds)
        if done.verification is None:
            raise ErrandFailed(_reason(done))
        return done.verification

    def errand(self, errand_id: str, *, wait_seconds: float = 0.0) -> ErrandView:
        """An errand as it is, or once it has ended within `wait_seconds` (at most 20)."""
        params = {"timeout": min(wait_seconds, _LOOK_SECONDS)}
        return ErrandView.model_validate(self._http.json("GET", f"/v1/errands/{quote(errand_id)}", params=params))

    def errands(
        self,
        *,
        kind: ErrandKind | str | None = None,
        state: ErrandState | str | None = None,
        job_id: str | None = None,
        page_size: int = 50,
    ) -> Iterator[ErrandView]:
        """Errands that match all that is given, newest first, without their answers; pages are fetched as needed."""
        given = {"kind": kind, "state": state, "job_id": job_id}
        params = {name: str(value) for name, value in given.items() if value is not None}
        return pages(self._http, "/v1/errands", ErrandView, {**params, "page_size": page_size})

    def cancel_errand(self, errand_id: str) -> ErrandView:
        """Cancel an errand: at once where it waits; one that runs ends soon after, with `cancel_request_time` set."""
        return ErrandView.model_validate(self._http.json("POST", f"/v1/errands/{quote(errand_id, safe='')}/cancel"))

    def _errand(self, path: str, body: Any, timeout_seconds: float) -> ErrandView:
        deadline = time.monotonic() + timeout_seconds
        params = {"timeout": min(timeout_seconds, _LOOK_SECONDS)}
        view = ErrandView.model_validate(self._http.json("POST", path, params=params, body=body))
        while not view.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ErrandTimeout(f"no answer after {timeout_seconds:g} s; {view.id} is {view.state}", view.id)
            view = self.errand(view.id, wait_seconds=left)
        return view


def _reason(view: ErrandView) -> str:
    error = view.error
    return "the engine gave no answer" if error is None else f"{error.message} {error.suggestion}".strip()
