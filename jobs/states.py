"""The life of a job: states, what moves between them, and nothing else."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Stored state of a job. Wishes (cancel, stop, pause) are timestamps, not states."""

    QUEUED = "queued"
    """Accepted and durable; waits for a worker."""
    RUNNING = "running"
    """A worker holds the lease."""
    PAUSED = "paused"
    """Stopped at a checkpoint until resumed."""
    SUCCEEDED = "succeeded"
    """Ended well; checkpoints are ready."""
    FAILED = "failed"
    """Ended with an error; `error` says why."""
    CANCELLED = "cancelled"
    """Ended because somebody asked."""


class Move(StrEnum):
    """What changes a state; also the type of the event that records it."""

    SUBMIT = "submitted"
    CLAIM = "claimed"
    SUCCEED = "succeeded"
    FAIL = "failed"
    CANCEL = "cancelled"
    REQUEUE = "requeued"
    PAUSE = "paused"
    RESUME = "resumed"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: dict[Move, tuple[frozenset[JobState], JobState]] = {
    Move.CLAIM: (frozenset({JobState.QUEUED}), JobState.RUNNING),
    Move.SUCCEED: (frozenset({JobState.RUNNING}), JobState.SUCCEEDED),
    Move.FAIL: (frozenset({JobState.QUEUED, JobState.RUNNING}), JobState.FAILED),
    Move.CANCEL: (frozenset({JobState.QUEUED, JobState.RUNNING, JobState.PAUSED}), JobState.CANCELLED),
    Move.REQUEUE: (frozenset({JobState.RUNNING}), JobState.QUEUED),
    Move.PAUSE: (frozenset({JobState.QUEUED, JobState.RUNNING}), JobState.PAUSED),
    Move.RESUME: (frozenset({JobState.PAUSED}), JobState.QUEUED),
}
"""For each move: the states it may start from, and the state it leads to."""


_ACTIONS = {
    JobState.QUEUED: ["cancel", "pause"],
    JobState.RUNNING: ["cancel", "pause", "stop"],
    JobState.PAUSED: ["cancel", "resume"],
    JobState.FAILED: ["retry"],
    JobState.CANCELLED: ["retry"],
}
_AFTER_A_WISH = {
    "cancel": ["cancel"],
    "stop": ["cancel", "stop"],
    "pause": ["cancel", "pause", "stop", "resume"],
}
"""What is left to ask of a job that has not fulfilled its owner's strongest wish yet."""


def allowed_actions(state: JobState, *, wish: str | None = None, has_checkpoint: bool = False) -> list[str]:
    """Verbs a client may use on a job in this state.

    Args:
        wish: what its owner asked for and still waits for: `cancel`, `stop` or `pause`, the strongest of them.
        has_checkpoint: it keeps one to fork from.
    """
    verbs = _ACTIONS.get(state, []) if wish is None else _AFTER_A_WISH[wish]
    return [*verbs, "fork"] if has_checkpoint else list(verbs)
