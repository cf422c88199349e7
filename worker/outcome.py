"""What the end of an attempt means: one pure function from what was seen to what is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from jobs.lifecycle import USER_PAUSE
from jobs.views import JobError
from ppo_engine.errors import Category, OutOfMemory, ProcessLost
from ppo_engine.events import Failed, Finished, GuardTripped, Outcome, Phase
from worker.process import Exit

CORRUPT = "checkpoint_corrupt"
_MAX_ERROR_CHARS = 4000
_MAX_REASON_CHARS = 64


class Reason(StrEnum):
    """Why the supervisor ended the engine."""

    CANCEL = "cancel"
    STOP = "stop"
    PAUSE = "pause"
    SHUTDOWN = "shutdown"
    MAX_RUNTIME = "max_runtime"
    HUNG = "hung"
    PROTOCOL = "protocol"
    FENCED = "fenced"


class Ending(StrEnum):
    """What becomes of the job."""

    SUCCEED = "succeeded"
    STOP = "stopped"
    """Succeeded before its last step, because its owner asked."""
    CANCEL = "cancelled"
    FAIL = "failed"
    PAUSE = "paused"
    """At a checkpoint, until somebody resumes it."""
    REQUEUE = "requeued"
    """Back in the queue, one attempt poorer."""
    RELEASE = "released"
    """Back in the queue as if this attempt had not been."""
    HALVE = "halved"
    """Back in the queue, once, to go on with half as much at once: its memory was exhausted."""
    DISCARD = "discarded"
    """Its checkpoint is damaged: forget that one and go back to the queue."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that was seen of an attempt."""

    attempt: int
    exit: Exit
    final: Finished | Failed | None = None
    guard: GuardTripped | None = None
    """The last guard that tripped."""
    reason: Reason | None = None
    detail: str = ""
    """What was wrong, for PROTOCOL; how long, for HUNG and MAX_RUNTIME."""
    phase: Phase | None = None
    step: int = 0
    saved_step: int | None = None
    """Step of the newest checkpoint that the database knows."""
    resumed: bool = False
    oom_killed: bool = False
    """Whether the kernel killed something of the worker's, for want of memory, while the attempt ran."""
    microbatch_size: int = 1
    """Of this attempt, sequences."""
    half_microbatch_size: int | None = None
    """What to try if memory runs out; None: it was halved before, or is one sequence."""
    can_split: bool = False
    """Whether responses were sampled all at once, and need not be."""
    log_tail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What to write, and the error that explains it."""

    ending: Ending
    error: JobError | None = field(default=None)
    stop_reason: str = ""
    """Why a job that succeeded or paused ended where it did."""
    message: str = ""
    halved: tuple[int, int] | None = None
    """For HALVE: the microbatch before and from now on, sequences. Responses are sampled in halves from now on too."""

    @property
    def code(self) -> str:
        """The error's code, or nothing."""
        return self.error.code if self.error else ""


def verdict(seen: Seen) -> Verdict:
    """Judge an attempt.

    A completed run stands, whatever else was asked of it meanwhile. So does a pause, but for a cancel: given back to
    the queue instead, the run would go on past the guard that asked for a person.
    """
    if isinstance(seen.final, Finished) and seen.reason is not Reason.PROTOCOL:
        if seen.final.outcome is Outcome.COMPLETED:
            return _completed(seen, seen.final)
        if seen.final.outcome is Outcome.PAUSED and seen.reason is not Reason.CANCEL:
            return Verdict(Ending.PAUSE, stop_reason=_reason(seen.final, "guard"), message=_explained(seen, seen.final))
    match seen.reason:
        case Reason.FENCED | Reason.SHUTDOWN | Reason.CANCEL:
            return Verdict(Ending.CANCEL if seen.reason is Reason.CANCEL else Ending.RELEASE)
        case Reason.STOP | Reason.PAUSE:
            return _as_wished(seen, seen.reason)
        case Reason.MAX_RUNTIME | Reason.HUNG | Reason.PROTOCOL:
            return _ended_by_us(seen, seen.reason)
        case None:
            return _broken(seen)


def start_failed(error: OSError, attempt: int) -> Verdict:
    """The engine could not even be started."""
    return Verdict(
        Ending.REQUEUE,
        JobError(
            code="engine_not_started",
            category=Category.INFRA,
            message=f"The engine could not be started: {error.strerror or error}.",
            suggestion="Look at the worker's disk space and its engine command.",
            attempt=attempt,
        ),
    )


def parent_gone(error: Exception, attempt: int) -> Verdict:
    """The checkpoint that a forked run begins with is not there any more."""
    return Verdict(
        Ending.FAIL,
        JobError(
            code="parent_checkpoint_gone",
            category=Category.USER,
            message=f"The checkpoint that this job was forked from is gone: {error}.",
            suggestion="The other run was rolled back behind it. Fork again from a checkpoint that is kept now.",
            attempt=attempt,
        ),
    )


def _completed(seen: Seen, final: Finished) -> Verdict:
    if seen.saved_step == final.step:
        reason = _reason(final, "completed")
        return Verdict(Ending.SUCCEED, stop_reason=reason, message=_explained(seen, final) if final.reason else "")
    message = f"The engine completed step {final.step} without a saved checkpoint of it."
    return Verdict(Ending.FAIL, _error(seen, "engine_protocol", Category.INTERNAL, message))


def _as_wished(seen: Seen, reason: Reason) -> Verdict:
    """The owner wanted it stopped or paused. What the engine could not save in time is lost, no more than that."""
    obeyed = isinstance(seen.final, Finished) or (seen.final is None and seen.exit.signal == "SIGKILL")
    if not obeyed or seen.oom_killed:
        return _broken(seen)
    lost = seen.step > (seen.saved_step or 0)
    at = f"at step {seen.saved_step or 0}" + (f"; what came after it until step {seen.step} is lost" if lost else "")
    if reason is Reason.PAUSE:
        return Verdict(Ending.PAUSE, stop_reason=USER_PAUSE, message=f"paused by its owner {at}")
    if seen.saved_step is None:
        return Verdict(Ending.RELEASE)  # there is nothing to end with yet, and the wish waits for the next attempt
    return Verdict(Ending.STOP, message=f"stopped by its owner {at}")


def _broken(seen: Seen) -> Verdict:
    return _failed(seen, seen.final) if isinstance(seen.final, Failed) else _crashed(seen)


def _reason(final: Finished, default: str) -> str:
    return (final.reason or default)[:_MAX_REASON_CHARS]


def _explained(seen: Seen, final: Finished) -> str:
    """Why a run ended before its last step, for people."""
    reason = _reason(final, "guard")
    why = seen.guard.rule if reason == "guard" and seen.guard is not None else reason
    verb = "paused" if final.outcome is Outcome.PAUSED else "ended early"
    # A pause at numbers that are not finite has no checkpoint of its own: the run goes on from the one before.
    behind = final.outcome is Outcome.PAUSED and seen.saved_step != final.step
    back = f"; it goes on from step {seen.saved_step or 0}" if behind else ""
    return f"{verb} at step {final.step}: {why}{back}"


def _ended_by_us(seen: Seen, reason: Reason) -> Verdict:
    match reason:
        case Reason.HUNG:
            message = f"The engine said nothing for {seen.detail} and was killed; its log has its stacks."
            return Verdict(Ending.REQUEUE, _error(seen, "engine_hung", Category.INFRA, message))
        case Reason.MAX_RUNTIME:
            message = f"The job ran for {seen.detail}, which is all that resources.max_runtime_seconds allows."
            suggestion = "Raise resources.max_runtime_seconds or lower ppo.steps; the last checkpoint is kept."
            return Verdict(Ending.FAIL, _error(seen, "max_runtime_exceeded", Category.USER, message, suggestion))
        case _:
            message = f"The engine broke the pipe's protocol: {seen.detail}."
            return Verdict(Ending.FAIL, _error(seen, "engine_protocol", Category.INTERNAL, message))


def _failed(seen: Seen, event: Failed) -> Verdict:
    error = _error(seen, event.code, event.category, event.message, event.suggestion)
    error = error.model_copy(update={"phase": event.phase or error.phase, "step": event.step})
    if event.code == CORRUPT and seen.resumed:
        return Verdict(Ending.DISCARD, error)
    if event.code == OutOfMemory.code:
        return _out_of_memory(seen, error, Ending.FAIL)
    if event.code == ProcessLost.code and seen.oom_killed:
        return _killed_by_kernel(seen)  # one of its processes
    return Verdict(Ending.REQUEUE if event.retryable else Ending.FAIL, error)


def _out_of_memory(seen: Seen, error: JobError, otherwise: Ending) -> Verdict:
    """Once with half as much at once, where that is less; it is no help while the models are loaded."""
    if error.phase in (None, Phase.LOADING):
        return Verdict(otherwise, error)
    if seen.half_microbatch_size is not None:
        return Verdict(Ending.HALVE, error, halved=(seen.microbatch_size, seen.half_microbatch_size))
    if seen.can_split and error.phase in (Phase.ROLLOUT, Phase.EVALUATION):
        return Verdict(Ending.HALVE, error, halved=(seen.microbatch_size, seen.microbatch_size))
    one = "one sequence, which cannot be halved" if seen.microbatch_size == 1 else f"{seen.microbatch_size} sequences"
    message = f"{error.message[:_MAX_ERROR_CHARS]} (with microbatches of {one})"
    return Verdict(otherwise, error.model_copy(update={"message": message}))


def _killed_by_kernel(seen: Seen) -> Verdict:
    message = "The kernel killed the engine: the machine's memory is exhausted."
    error = _error(seen, OutOfMemory.code, OutOfMemory.category, message, OutOfMemory.suggestion)
    return _out_of_memory(seen, error, Ending.REQUEUE)  # it may have been a neighbour's hunger


def _crashed(seen: Seen) -> Verdict:
    if seen.oom_killed and seen.exit.signal == "SIGKILL":
        return _killed_by_kernel(seen)
    if seen.exit.signal in ("SIGKILL", "SIGTERM"):
        message = f"The engine was killed from outside by {seen.exit.signal}."
        return Verdict(Ending.REQUEUE, _error(seen, "engine_killed", Category.INFRA, message))
    if isinstance(seen.final, Finished):
        return Verdict(Ending.REQUEUE, _error(seen, "engine_stopped", Category.INFRA, "Something stopped the engine."))
    if seen.exit.code == 0:
        message = "The engine ended without saying how."
        return Verdict(Ending.FAIL, _error(seen, "engine_protocol", Category.INTERNAL, message))
    how = f"crashed with {seen.exit.signal}" if seen.exit.signal else f"ended with exit code {seen.exit.code}"
    message = f"The engine {how} and left no error of its own; its log has more."
    return Verdict(Ending.REQUEUE, _error(seen, "engine_crashed", Category.INTERNAL, message))


def _error(seen: Seen, code: str, category: Category, message: str, suggestion: str = "") -> JobError:
    return JobError(
        code=code,
        category=category,
        message=message[:_MAX_ERROR_CHARS],
        suggestion=suggestion,
        phase=seen.phase,
        step=seen.step,
        attempt=seen.attempt,
        exit_code=seen.exit.code,
        signal=seen.exit.signal,
        log_tail=seen.log_tail,
    )
