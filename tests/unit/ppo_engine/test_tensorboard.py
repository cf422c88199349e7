"""Event files, read back with TensorBoard's own reader, hold exactly what was written."""

from __future__ import annotations

import math
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ppo_engine.events import Sample
from ppo_engine.program.tensorboard import TensorBoardWriter, samples_table
from ppo_engine.stats import HISTOGRAMS, REWARDS, SCALARS, StepStats

with warnings.catch_warnings():  # the HTML sanitiser inside TensorBoard warns when it is imported
    warnings.filterwarnings("ignore", "html5lib's sanitizer", DeprecationWarning)
    from tensorboard.plugin_util import markdown_to_safe_html

NASTY = "a|b *c* _d_ <script>x</script> `e` [f](g) # h &amp; ~~i~~ \\| ![j](k) 1. é😀"


def sample(prompt: str = "The movie was", response: str = " good", **options: object) -> Sample:
    fields = {"score": 0.25, "components": {"mood": 0.5}, "kl": 1.5, "response_tokens": 3, "finished": True}
    return Sample.model_validate({"prompt": prompt, "response": response, **fields, **options})


def step(number: int, value: float = 1.0) -> StepStats:
    return StepStats(
        step=number,
        scalars={"env/reward_mean": value, REWARDS.key("mood"): value / 2},
        histograms={"env/reward_dist": [0.0, 1.0, value]},
    )


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return accumulator.Reload()


def written(folder: Path, *steps: StepStats, purge_step: int | None = None) -> EventAccumulator:
    writer = TensorBoardWriter(folder, purge_step)
    for stats in steps:
        writer.write(stats, [])
    writer.close()
    return read(folder)


def test_every_metric_arrives_under_its_own_key_and_kind(tmp_path: Path) -> None:
    scalars = {key: float(index) for index, key in enumerate([*SCALARS, REWARDS.key("mood")])}
    histograms = {key: [float(index), index + 1.0] for index, key in enumerate(HISTOGRAMS)}
    events = written(tmp_path, StepStats(step=3, scalars=scalars, histograms=histograms))
    assert set(events.Tags()["scalars"]) == set(scalars)
    assert set(events.Tags()["histograms"]) == set(histograms)
    assert {key: [(e.step, e.value) for e in events.Scalars(key)] for key in scalars} == {
        key: [(3, value)] for key, value in scalars.items()
    }


def test_a_histogram_has_count_sum_and_range_of_its_values(tmp_path: Path) -> None:
    values = [0.5, -2.0, 3.25, 3.25, 0.0]
    stats = StepStats(step=1, scalars={}, histograms={"ppo/policy/ratio": values})
    (event,) = written(tmp_path, stats).Histograms("ppo/policy/ratio")
    histogram = event.histogram_value
    assert (histogram.num, histogram.sum, histogram.min, histogram.max) == (5, sum(values), -2.0, 3.25)
    for edge, expected in [(-1.0, 1), (0.25, 2), (1.0, 3), (10.0, 5)]:
        below = sum(n for n, limit in zip(histogram.bucket, histogram.bucket_limit, strict=True) if limit <= edge)
        assert below == expected


def test_values_that_are_not_finite_are_left_out_of_histograms_and_kept_as_scalars(tmp_path: Path) -> None:
    broken = StepStats(
        step=1,
        scalars={"ppo/grad_norm": math.nan},
        histograms={
            "ppo/policy/ratio": [1.0, math.inf, math.nan],
            "env/reward_dist": [],
            "objective/kl_dist": [math.nan],
        },
    )
    events = written(tmp_path, broken)
    assert events.Tags()["histograms"] == ["ppo/policy/ratio"]
    assert events.Histograms("ppo/policy/ratio")[0].histogram_value.num == 1
    assert math.isnan(events.Scalars("ppo/grad_norm")[0].value)


def test_a_step_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, None)
    writer.write(step(1), [sample()])
    assert [event.step for event in read(tmp_path).Scalars("env/reward_mean")] == [1]
    writer.close()


def test_a_resumed_run_replaces_what_it_does_again(tmp_path: Path) -> None:
    written(tmp_path, *(step(number, 1.0) for number in range(1, 6)))
    events = written(tmp_path, step(4, 2.0), step(5, 2.0), step(6, 2.0), purge_step=4)
    found = [(event.step, event.value) for event in events.Scalars("env/reward_mean")]
    assert found == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]


def test_a_run_from_its_start_replaces_all_that_was_there(tmp_path: Path) -> None:
    written(tmp_path, *(step(number, 1.0) for number in range(1, 6)))
    events = written(tmp_path, step(1, 2.0), step(2, 2.0))
    assert [(event.step, event.value) for event in events.Scalars("env/reward_mean")] == [(1, 2.0), (2, 2.0)]


def test_samples_are_text(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, None)
    writer.write(step(2), [sample()])
    writer.close()
    (event,) = read(tmp_path).Tensors("samples/text_summary")
    (text,) = event.tensor_proto.string_val
    assert event.step == 2
    assert text.decode() == samples_table([sample()])


class Cells(HTMLParser):
    """Rows of the one table in a page; any element but those of a table is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        elif tag == "br":
            self.rows[-1][-1] += "\n"
        else:
            assert tag in {"table", "thead", "tbody"}

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


@pytest.mark.parametrize("text", [NASTY, "two\nlines\r\n\r\n- three", "plain", "| --- |", "    code", "<br>", "&lt;"])
def test_texts_are_shown_literally_by_tensorboard(text: str) -> None:
    table = samples_table([sample(text, text, kl=None, finished=False), sample()])
    header, first, second = Cells(markdown_to_safe_html(table)).rows
    assert header == ["prompt", "response", "score", "mood", "KL", "tokens", "finished"]
    shown = text.replace("\r\n", "\n").strip()
    assert first == [shown, shown, "0.25", "0.5", "", "3", "no"]
    assert second == ["The movie was", "good", "0.25", "0.5", "1.5", "3", "yes"]
