"""What a comparison of replayed steps means, in words: what said nothing, what may explain a difference, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ppo_engine.verification import (
    CheckpointVerification,
    NotCompared,
    Note,
    StepVerification,
    VerificationWork,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """All that was found."""

    work: VerificationWork
    steps: Sequence[StepVerification]
    checkpoints: Sequence[CheckpointVerification]
    ended: str | None
    """Why the replay ended before its last step."""
    environment: Sequence[Note]
    damage: Sequence[Note]

    @property
    def same_steps(self) -> bool:
        return bool(self.steps) and all(step.identical for step in self.steps)

    @property
    def same_samples(self) -> bool:
        return all(step.samples_differing == 0 for step in self.steps)

    @property
    def same_checkpoints(self) -> bool:
        return all(found.identical for found in self.checkpoints) and not self.damage

    @property
    def complete(self) -> bool:
        return len(self.steps) == self.work.steps

    @property
    def identical(self) -> bool:
        return self.same_steps and self.same_checkpoints and self.complete


def verdict(found: Compared) -> str:
    """One or two sentences."""
    first, last = found.work.start.step + 1, found.work.start.step + found.work.steps
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    if found.identical:
        return f"Identical: {steps} came out bit for bit as {'the first time' if found.work.twice else 'recorded'}."
    notes = notes_of(found)
    because = notes[0].message if notes else "Nothing known explains it: please report it with this answer."
    return f"Different: {_first_difference(found)}. {because}"


def _first_difference(found: Compared) -> str:
    for step in found.steps:
        if step.differences:
            return f"`{step.differences[0].key}` of step {step.step}" + _more(step.scalars_differing)
        if step.sample_differences:
            return f"the samples of step {step.step}"
    for kept in found.checkpoints:
        if kept.differences:
            return f"`{kept.differences[0].name}` in the checkpoint of step {kept.step}" + _more(kept.tensors_differing)
        if kept.state:
            return f"`{kept.state[0]}` in the checkpoint of step {kept.step}"
    if found.damage:
        return "a checkpoint is damaged"
    return f"only {len(found.steps)} of {found.work.steps} steps were made again"


def _more(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


def not_compared(found: Compared) -> list[NotCompared]:
    """What says nothing about the run, and why."""
    work = found.work
    left = [
        ("time/*, memory/*, tokens/per_second", "they measure the machine, not the run"),
        ("histograms, token values", "only files of the run directory have them"),
    ]
    compared = {kept.step for kept in found.checkpoints}
    reach = f"steps {work.start.step + 1} to {work.start.step + work.steps}"
    if work.twice:
        left.append(("what the job recorded", "two replays were asked for"))
    elif not work.later:
        left.append(("weights", f"no checkpoint of {reach} is kept"))
    gone = [kept.step for kept in work.later if kept.step not in compared]
    left += [(f"weights of step {step}", "its checkpoint is gone, cannot be read or was not reached") for step in gone]
    left += [("evaluation of a step", reason) for reason in _evaluations(found)]
    return [NotCompared(what=what, reason=reason) for what, reason in left]


def _evaluations(found: Compared) -> Iterator[str]:
    evaluation, records = found.work.config.evaluation, {record.step: record for record in found.work.recorded}
    for step in (step.step for step in found.steps if step.step in records):
        due = evaluation is not None and (step % evaluation.every_steps == 0 or step == found.work.config.ppo.steps)
        if not due and any(key.startswith("eval/") for key in records[step].scalars):
            yield f"the run was stopped at step {step} and evaluated there; the replay was not"


def notes_of(found: Compared) -> list[Note]:
    """What may explain a difference, the likeliest first; without a difference, what was not as in the run."""
    notes = [*found.damage, *found.environment]
    if found.ended is not None:
        notes.append(Note(code="ended_early", message=f"The replay ended early: {found.ended}."))
    config = found.work.config
    if config.resources.processes > 1:
        count = config.resources.processes
        message = f"The run had {count} processes, a replay has one: sums come in another order, and round otherwise."
        notes.append(Note(code="several_processes", message=message))
    if found.identical:
        return notes
    changed = list(_records(found))
    return [*changed, *notes] if changed else [*notes, *_rewards(found), *_device(found)]


def _records(found: Compared) -> Iterator[Note]:
    """Differences in one place alone: the run is sound, and what is kept of it was changed."""
    weights = [kept for kept in found.checkpoints if kept.tensors]
    if found.work.twice or not found.complete:
        return
    if not found.same_steps and found.same_samples and weights and found.same_checkpoints:
        message = (
            "Weights and samples came out the same: the run is sound, and its recorded numbers were changed afterwards."
        )
        yield Note(code="record_changed", message=message)
    if found.same_steps and not found.same_checkpoints:
        message = (
            "All numbers and samples came out the same: the run is sound, and its kept checkpoint was changed "
            "afterwards. Do not use it; resume from or download another one."
        )
        yield Note(code="checkpoint_changed", message=message)


def _rewards(found: Compared) -> Iterator[Note]:
    for reward in found.work.config.rewards:
        kind = "asks a server" if reward.http is not None else "runs a plugin" if reward.plugin is not None else None
        if kind is not None:
            message = f"Reward `{reward.name}` {kind} again, and its answers may differ: try it with `ppo preview`."
            yield Note(code="reward_asked_again", message=message)


def _device(found: Compared) -> Iterator[Note]:
    device = (found.work.device or "").split(":")[0]
    if device == "cuda":
        message = "On a GPU sums may come in another order from run to run: bits are promised on the CPU alone."
    else:
        message = "With another number of CPU threads, or another processor, sums may round otherwise."
    yield Note(code="arithmetic", message=message)
