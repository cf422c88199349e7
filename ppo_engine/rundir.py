"""The files of one run, and where they are. The engine writes them; the service reads them.

spec.json                          the resolved spec
engine-<attempt>.log               standard error of one attempt
samples.jsonl                      one line per stored response
rollbacks.json                     how often each guard rolled the run back
tensorboard/                       event files
converted/                         models made from GGUF files
exports/step-00000010-3/           an adapter's checkpoint merged into its model, for who asks for it
inspection/step-00000010-3/        what step 10 of attempt 3 worked on, if its numbers were not finite
checkpoints/step-00000010-3/       step 10, written by attempt 3
    manifest.json                  sizes and sha256 of all files
    model/                         the policy: a Hugging Face folder or PEFT adapter, with its tokenizer
    ema/                           its moving average, likewise, if the run keeps one
    critic/                        a critic with its own trunk: a Hugging Face folder and value_head.safetensors
    value.safetensors  optimizer.safetensors  rng.safetensors  state.json
    reference.safetensors          a reference that was reset
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
"""In a checkpoint: sizes and digests of all its other files."""

PARTIAL_PREFIX = ".partial-"
"""Of a checkpoint that is being written, or was when its writer died."""

_CHECKPOINT = re.compile(r"^step-(\d{8})-(\d+)$")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths under the folder of one run."""

    root: Path

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def converted(self) -> Path:
        """Models that were made from GGUF files."""
        return self.root / "converted"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    def merged(self, checkpoint: str) -> Path:
        """The merged model of a checkpoint folder."""
        return self.exports / Path(checkpoint).name

    @property
    def rollbacks(self) -> Path:
        return self.root / "rollbacks.json"

    def inspection(self, step: int, attempt: int) -> Path:
        """What a step worked on whose numbers were not finite."""
        return self.root / "inspection" / f"step-{step:08d}-{attempt}"

    def log(self, attempt: int) -> Path:
        """Standard error of one attempt."""
        return self.root / f"engine-{attempt}.log"

    def checkpoint(self, step: int, attempt: int) -> Path:
        """The final folder of a checkpoint."""
        return self.checkpoints / f"step-{step:08d}-{attempt}"

    def saved_checkpoints(self) -> list[Path]:
        """Folders with a checkpoint's name, newest first: higher step, then higher attempt."""
        if not self.checkpoints.is_dir():
            return []
        found = [(match, path) for path in self.checkpoints.iterdir() if (match := _CHECKPOINT.match(path.name))]
        found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2])), reverse=True)
        return [path for _, path in found]


def checkpoint_step(path: Path) -> int:
    """The step in a checkpoint folder's name."""
    match = _CHECKPOINT.match(path.name)
    if match is None:
        raise ValueError(f"not a checkpoint folder: {path.name}")
    return int(match[1])
