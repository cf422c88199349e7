"""Two accounts of the same steps, and two checkpoints of the same step, compared bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ppo_engine.checkpoint import STATE, read_values
from ppo_engine.errors import CheckpointCorrupt
from ppo_engine.verification import (
    MAX_SHOWN,
    CheckpointVerification,
    KeyDifference,
    RecordedSample,
    RecordedStep,
    SampleDifference,
    ScalarDifference,
    StepVerification,
    TensorDifference,
)

_UNREPEATABLE = ("time/", "memory/", "tokens/per_second")
_SHOWN_CHARACTERS = 80
_NOT_STATE = ("format", "identity", "versions", "score")
"""Of `state.json`: what the checkpoint says about itself, and a rank that is in the metrics."""


def repeats(key: str) -> bool:
    """Whether a number follows from the run alone, and not from the machine's speed or memory."""
    return not key.startswith(_UNREPEATABLE)


# --- steps --------------------------------------------------------------------------------------------------------


def compare_step(recorded: RecordedStep, replayed: RecordedStep) -> tuple[StepVerification, list[ScalarDifference]]:
    """What differs in one step, and all of its numbers that do."""
    keys = sorted(filter(repeats, recorded.scalars.keys() | replayed.scalars.keys()))
    pairs = ((key, recorded.scalars.get(key), replayed.scalars.get(key)) for key in keys)
    numbers = [_scalar(key, a, b) for key, a, b in pairs if a != b]
    samples = list(_samples(recorded.samples, replayed.samples))
    differing = len({difference.index for difference in samples})
    step = StepVerification(
        step=recorded.step,
        identical=not numbers and not samples,
        scalars=len(keys),
        scalars_differing=len(numbers),
        samples=max(len(recorded.samples), len(replayed.samples)),
        samples_differing=differing,
        differences=numbers[:MAX_SHOWN],
        sample_differences=samples[:MAX_SHOWN],
    )
    return step, numbers


def by_key(numbers: Mapping[int, Sequence[ScalarDifference]]) -> list[KeyDifference]:
    """The numbers that differ, each over all steps, in the order in which they begin to."""
    found: dict[str, list[tuple[int, ScalarDifference]]] = {}
    for step in sorted(numbers):
        for difference in numbers[step]:
            found.setdefault(difference.key, []).append((step, difference))
    return [
        KeyDifference(
            key=key,
            first_step=cases[0][0],
            steps=len(cases),
            max_absolute=_largest(case.absolute for _, case in cases),
            max_relative=_largest(case.relative for _, case in cases),
        )
        for key, cases in found.items()
    ]


def _largest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _scalar(key: str, a: float | None, b: float | None) -> ScalarDifference:
    if a is None or b is None:
        return ScalarDifference(key=key, recorded=a, replayed=b, absolute=None, relative=None)
    distance, larger = abs(a - b), max(abs(a), abs(b))
    return ScalarDifference(key=key, recorded=a, replayed=b, absolute=distance, relative=distance / larger)


def _samples(recorded: Sequence[RecordedSample], replayed: Sequence[RecordedSample]) -> Iterator[SampleDifference]:
    for index in range(max(len(recorded), len(replayed))):
        pair = [side[index].model_dump() if index < len(side) else {} for side in (recorded, replayed)]
        for name in RecordedSample.model_fields:
            a, b = (side.get(name) for side in pair)
            if a != b:
                yield _sample(index, name, a, b)


def _sample(index: int, name: str, a: Any, b: Any) -> SampleDifference:
    position = None
    if isinstance(a, str) and isinstance(b, str):
        same = (x == y for x, y in zip(a, b, strict=False))
        position = next((place for place, equal in enumerate(same) if not equal), min(len(a), len(b)))
        a, b = (text[position : position + _SHOWN_CHARACTERS] for text in (a, b))
    return SampleDifference(index=index, field=name, recorded=json.dumps(a), replayed=json.dumps(b), position=position)


# --- checkpoints --------------------------------------------------------------------------------------------------


def compare_checkpoints(step: int, recorded: Path, replayed: Path) -> CheckpointVerification:
    """What differs between two checkpoints of a step.

    Raises:
        CheckpointCorrupt: a file of them cannot be read.
    """
    names = sorted({str(p.relative_to(root)) for root in (recorded, replayed) for p in root.rglob("*.safetensors")})
    count, differences = 0, []
    for name in names:
        tensors, found = _compare_files(name, recorded / name, replayed / name)
        count += tensors
        differences += found
    state = _compare_state(read_values(recorded), read_values(replayed))
    return CheckpointVerification(
        step=step,
        identical=not differences and not state,
        tensors=count,
        tensors_differing=len(differences),
        differences=differences[:MAX_SHOWN],
        state=state,
    )


def _compare_files(name: str, recorded: Path, replayed: Path) -> tuple[int, list[TensorDifference]]:
    """Tensors compared, and those that differ; one pair is in memory at a time."""
    differences = []
    try:
        with ExitStack() as stack:
            sides = [_opened(path, stack) for path in (recorded, replayed)]
            keys = sorted({key for side in sides if side is not None for key in side.keys()})  # noqa: SIM118 - no dict
            for key in keys:
                a, b = (None if side is None or key not in side.keys() else side.get_tensor(key) for side in sides)  # noqa: SIM118
                found = _compare_tensors(f"{name}:{key}", a, b)
                if found is not None:
                    differences.append(found)
            return len(keys), differences
    except (SafetensorError, OSError) as error:
        raise CheckpointCorrupt(f"{name} of a checkpoint cannot be read: {error}") from error


def _opened(path: Path, stack: ExitStack) -> Any:
    return stack.enter_context(safe_open(path, framework="pt")) if path.is_file() else None


def _compare_tensors(name: str, a: Tensor | None, b: Tensor | None) -> TensorDifference | None:
    ours, theirs = (None if tensor is None else _digest(tensor) for tensor in (a, b))
    if ours == theirs:
        return None
    distance = None
    if a is not None and b is not None and a.shape == b.shape and a.dtype != torch.bool and a.numel():
        largest = (a.double() - b.double()).abs().max().item()
        distance = largest if math.isfinite(largest) else None
    return TensorDifference(name=name, recorded_sha256=ours, replayed_sha256=theirs, max_absolute=distance)


def _digest(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _compare_state(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[str]:
    keys = sorted((recorded.keys() | replayed.keys()) - set(_NOT_STATE))
    return [f"{STATE}:{key}" for key in keys if recorded.get(key) != replayed.get(key)]
