"""Steps of a job made again from a checkpoint, compared with what the job recorded, or with a second replay."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from ppo_engine import checkpoint
from ppo_engine.errors import CheckpointCorrupt
from ppo_engine.program.again import Place, Replay, replayed
from ppo_engine.program.comparison import by_key, compare_checkpoints, compare_step
from ppo_engine.program.diagnosis import Compared, not_compared, notes_of, verdict
from ppo_engine.rundir import RunDir
from ppo_engine.verification import (
    CheckpointVerification,
    Note,
    RecordedStep,
    ScalarDifference,
    StepVerification,
    Verification,
    VerificationWork,
)


def verify_resume(work: VerificationWork, place: Place) -> Verification:
    """Replay and compare, in a folder under `place.scratch` that is removed; raises as `replayed`."""
    start = perf_counter()
    with TemporaryDirectory(prefix="verify-", dir=place.scratch) as folder:
        keep = {work.start.step + work.steps} if work.twice else {kept.step for kept in work.later}
        replays = [replayed(work, place, Path(folder) / str(n), keep) for n in range(2 if work.twice else 1)]
        replay = replays[-1]
        records = replays[0].steps if work.twice else {record.step: record for record in work.recorded}
        steps, numbers = _compare_steps(records, replay.steps)
        folders = replays[0].checkpoints if work.twice else _kept(work, place.run)
        checkpoints, damage = _compare_checkpoints(folders, replay)
    compared = Compared(work, steps, checkpoints, replay.ended, _environment(work, replay), damage)
    return Verification(
        identical=compared.identical,
        verdict=verdict(compared),
        twice=work.twice,
        from_step=work.start.step,
        to_step=steps[-1].step if steps else work.start.step,
        steps=steps,
        keys=by_key(numbers),
        checkpoints=checkpoints,
        not_compared=not_compared(compared),
        notes=notes_of(compared),
        device=replay.device,
        precision=replay.precision,
        seconds=perf_counter() - start,
    )


def _compare_steps(
    records: dict[int, RecordedStep], made_again: dict[int, RecordedStep]
) -> tuple[list[StepVerification], dict[int, list[ScalarDifference]]]:
    steps, numbers = [], {}
    for step in sorted(records.keys() & made_again.keys()):
        record, again = records[step], made_again[step]
        found, numbers[step] = compare_step(record if _evaluated(again) else _without_evaluation(record), again)
        steps.append(found)
    return steps, numbers


def _evaluated(record: RecordedStep) -> bool:
    return any(key.startswith("eval/") for key in record.scalars)


def _without_evaluation(record: RecordedStep) -> RecordedStep:
    """A run that is stopped or paused evaluates its last step; a replay has no reason to."""
    scalars = {key: value for key, value in record.scalars.items() if not key.startswith("eval/")}
    return RecordedStep(
        step=record.step, scalars=scalars, samples=[sample for sample in record.samples if not sample.evaluation]
    )


def _kept(work: VerificationWork, run: RunDir) -> dict[int, Path]:
    folders = {kept.step: run.root / kept.folder for kept in work.later}
    return {step: folder for step, folder in folders.items() if folder.is_dir()}


def _compare_checkpoints(folders: dict[int, Path], replay: Replay) -> tuple[list[CheckpointVerification], list[Note]]:
    """Later checkpoints against the replay's, and which of them are damaged."""
    found, damage = [], []
    for step in sorted(folders.keys() & replay.checkpoints.keys()):
        try:
            checkpoint.verify(folders[step])
        except CheckpointCorrupt as error:
            damage.append(Note(code="checkpoint_damaged", message=f"The checkpoint of step {step}: {error.message}."))
        with suppress(CheckpointCorrupt):
            found.append(compare_checkpoints(step, folders[step], replay.checkpoints[step]))
    return found, damage


def _environment(work: VerificationWork, replay: Replay) -> list[Note]:
    """In what the replay was made otherwise than the run."""
    notes = []
    if work.device is not None and work.device.split(":")[0] != replay.device.split(":")[0]:
        message = f"The run trained on {work.device}, this replay on {replay.device}: numbers differ by rounding."
        notes.append(Note(code="other_device", message=message))
    if work.precision is not None and work.precision != replay.precision:
        message = f"The run computed in {work.precision}, this replay in {replay.precision}."
        notes.append(Note(code="other_precision", message=message))
    then, now = replay.written_with, checkpoint.versions()
    for name in sorted(name for name in now if then.get(name, now[name]) != now[name]):
        message = f"The checkpoint was written with {name} {then[name]}, this replay used {now[name]}."
        notes.append(Note(code="other_versions", message=message))
    return notes
