"""The small numbers behind the board and the plots."""

from __future__ import annotations

import random

import pytest

from jobs.states import JobState
from ppo_client.comparison import pair, window
from ppo_client.curves import CURVES, coarse, duration, headline, is_good, number, run_time, sparkline, thin, trend
from ppo_client.plots import points, running_mean
from tests.support.client_values import ended, job_view, metrics_view, sample_view

REWARD, KL, ENTROPY = CURVES[:3]


def test_a_sparkline_spans_low_to_high():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0, 3.0], 8) == "▁▁▁"
    assert sparkline([], 8) == ""


def test_a_long_curve_is_thinned_to_means_of_equal_stretches():
    assert thin([1, 3, 5, 7], 2) == [2, 6]
    assert thin([1, 3, 5], 3) == [1, 3, 5]
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_a_trend_needs_more_than_noise():
    noise = random.Random(1)
    flat = [noise.gauss(0, 1) for _ in range(200)]
    assert trend([step * 0.5 + value * 0.01 for step, value in enumerate(flat)]) == 1
    assert trend([-step * 0.5 for step in range(10)]) == -1
    assert trend([1.0] * 10) == 0
    assert trend([1.0, 2.0, 3.0]) == 0
    assert trend([5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.1]) == 0


def test_only_metrics_with_a_wanted_direction_are_good_or_bad():
    assert is_good(REWARD, 1) is True
    assert is_good(REWARD, -1) is False
    assert is_good(KL, 1) is False
    assert is_good(ENTROPY, 1) is None
    assert is_good(REWARD, 0) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (72, "1m 12s"), (3599.6, "1h 00m"), (7500, "2h 05m")]
)
def test_durations_read_naturally(seconds, text):
    assert duration(seconds) == text


def test_numbers_are_short():
    assert [number(value) for value in (0.123456, 12.3456, 1234567.0, 0.0)] == ["0.123", "12.3", "1,234,567", "0"]


def test_a_line_names_only_what_was_reported():
    assert headline({"env/reward_mean": 0.25, "ppo/loss/value": 0.031, "other": 1}) == "reward 0.25  value_loss 0.031"


def test_run_time_counts_from_the_first_start():
    assert run_time(ended(JobState.SUCCEEDED)) == "1m 39s"
    assert run_time(job_view()) == "1m 05s"
    assert run_time(job_view(start_time=None)) == "not started"


def test_points_leave_out_steps_that_did_not_report():
    metrics = metrics_view(3, **{"objective/kl": [1.0, None, 3.0]})
    assert points(metrics, "objective/kl") == ([1, 3], [1.0, 3.0])
    assert points(metrics, "absent") == ([], [])


def test_a_running_mean_uses_what_exists_at_the_ends():
    assert running_mean([0, 3, 6, 9], window=3) == [1.5, 3, 6, 7.5]


def test_first_and_last_steps_never_overlap():
    steps = list(range(1, 31))
    assert window(steps, last=False) == [1, 2, 3, 4, 5]
    assert window(steps, last=True) == [26, 27, 28, 29, 30]
    assert window([1, 2, 3], last=False) == [1]
    assert window([1, 2, 3], last=True) == [3]
    assert window([7], last=False) == []
    assert window([7], last=True) == [7]


def test_pairs_show_the_median_response_of_each_end_and_whole_pairs_first():
    first = [sample_view("gone", 0.1), *(sample_view("both", score, response=f"{score}") for score in (0.9, -0.5, 0.2))]
    last = [sample_view("both", 0.7), sample_view("new", 0.3)]
    both, gone, new = pair(first, last)
    assert (both.prompt, both.before.score, both.after.score) == ("both", 0.2, 0.7)
    assert (gone.prompt, gone.before.score, gone.after) == ("gone", 0.1, None)
    assert (new.prompt, new.before, new.after.score) == ("new", None, 0.3)
    assert len(pair(first, last, limit=1)) == 1


def test_an_age_has_one_unit() -> None:
    ages = [coarse(seconds) for seconds in (-3.0, 8.4, 59.0, 3599.0, 86_399.0, 9.5 * 86_400)]
    assert ages == ["0s", "8s", "59s", "59m", "23h", "9d"]
