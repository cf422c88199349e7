"""Time limits of one attempt. Knows no clock and no process: it is told the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppo_engine.events import Event, RolledBack, Started, StepDone

_STEPS_OF_SILENCE = 10


@dataclass
class Pace:
    """How fast a run moves, and from that how long to wait for it. All times are seconds of one monotonic clock."""

    started_at: float
    max_runtime_seconds: float
    """Of all attempts together."""
    spent_seconds: float
    """By the attempts before this one."""
    loading_seconds: float
    silence_seconds: float
    grace_seconds: float
    longest_step_seconds: float = field(default=0.0, init=False)
    _heard_at: float = field(init=False)
    _step_began_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._heard_at = self.started_at

    def begin(self, now: float) -> None:
        """Note that an engine starts: silence is counted from here."""
        self._heard_at = now

    def hear(self, event: Event, now: float) -> None:
        """Note an event, after it was dealt with: the time a slow database takes is not the engine's silence."""
        self._heard_at = now
        if isinstance(event, StepDone) and self._step_began_at is not None:
            self.longest_step_seconds = max(self.longest_step_seconds, now - self._step_began_at)
        if isinstance(event, Started | StepDone | RolledBack):
            self._step_began_at = now

    def silent_too_long(self, now: float) -> bool:
        """Whether a live engine would have said something by now."""
        return self.silent_seconds(now) > self.silence_limit_seconds

    def silent_seconds(self, now: float) -> float:
        """How long nothing was heard."""
        return now - self._heard_at

    def over_time(self, now: float) -> bool:
        """Whether the attempts have used up the job's run time."""
        return self.spent_seconds + now - self.started_at > self.max_runtime_seconds

    def stop_by(self, now: float) -> float:
        """When an engine asked to stop now must be gone: it may finish its step, then has the grace to save it."""
        return now + self.longest_step_seconds + self.grace_seconds

    @property
    def silence_limit_seconds(self) -> float:
        if self._step_began_at is None:
            return self.loading_seconds
        return max(self.silence_seconds, _STEPS_OF_SILENCE * self.longest_step_seconds)
