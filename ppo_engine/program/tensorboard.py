"""One run's statistics as a TensorBoard directory, under exactly the keys of `ppo_engine.stats`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from ppo_engine.events import Sample
from ppo_engine.stats import StepStats

SAMPLES_TAG = "samples"
EVALUATION_TAG = "evaluation"

_MARKDOWN = re.compile(r"[^\w\s]|_")


class TensorBoardWriter:
    """Writes event files to `folder`.

    `purge_step` is the first step that will be written after a resume; TensorBoard then drops what earlier attempts
    wrote from that step on. None is a run from its start: all that an attempt before it wrote is dropped.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=purge_step or 0)

    def write(self, stats: StepStats, samples: Sequence[Sample]) -> None:
        """Write one step: scalars, histograms, and samples as a Markdown table; on disk when this returns."""
        for key, value in stats.scalars.items():
            self._writer.add_scalar(key, value, stats.step)
        for key, values in stats.histograms.items():
            finite = np.asarray(values, dtype=np.float64)
            finite = finite[np.isfinite(finite)]
            if finite.size:  # a histogram of nothing cannot be written
                self._writer.add_histogram(key, finite, stats.step)
        for tag, evaluation in ((SAMPLES_TAG, False), (EVALUATION_TAG, True)):
            shown = [sample for sample in samples if sample.evaluation is evaluation]
            if shown:
                self._writer.add_text(tag, samples_table(shown), stats.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file; nothing can be written afterwards."""
        self._writer.close()


def samples_table(samples: Sequence[Sample]) -> str:
    """A Markdown table with one row per sample; texts are shown literally, whatever they contain."""
    names = sorted({name for sample in samples for name in sample.components})
    header = ["prompt", "response", "score", *map(_literal, names), "KL", "tokens", "finished"]
    rows = [_row(sample, names) for sample in samples]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(sample: Sample, names: Sequence[str]) -> list[str]:
    numbers = [sample.score, *(sample.components.get(name, float("nan")) for name in names)]
    return [
        _literal(sample.prompt),
        _literal(sample.response),
        *(f"{number:.4g}" for number in numbers),
        "" if sample.kl is None else f"{sample.kl:.4g}",
        str(sample.response_tokens),
        "yes" if sample.finished else "no",
    ]


def _literal(text: str) -> str:
    """Every punctuation mark as a character reference, so that neither Markdown nor HTML sees any."""
    escaped = _MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", text)
    return escaped.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "<br>")
