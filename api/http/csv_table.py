"""Metrics as CSV: one row per step, one column per key, empty where a key was not reported."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from jobs.views import MetricsView


def rows(metrics: MetricsView) -> Iterator[str]:
    """Lines of the table, the header first."""
    keys = sorted(metrics.series)
    yield _line(["step", "time", *map(_text, keys)])
    for index, (step, at) in enumerate(zip(metrics.steps, metrics.times, strict=True)):
        values = [metrics.series[key][index] for key in keys]
        yield _line([step, at.isoformat(), *("" if value is None else repr(value) for value in values)])


def _text(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell[:1] in "=+-@\t\r" else cell


def _line(cells: list[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
