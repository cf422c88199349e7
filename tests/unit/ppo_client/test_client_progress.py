"""What a followed job looks like: guards are told, and what was rolled back is drawn again."""

from __future__ import annotations

import io

from rich.console import Console

from jobs.states import JobState
from ppo_client.progress import Board, PlainLines
from ppo_client.updates import End, Happened, Snapshot, Step
from tests.support.client_values import START, ended, event_view, job_view


def step(number: int, **metrics: float) -> Step:
    return Step(cursor="", step=number, time=START, metrics={"env/reward_mean": number / 10, **metrics})


def happened(kind: str, message: str, **data: object) -> Happened:
    return Happened(cursor="", event=event_view(5, type=kind, message=message, data=data))


def test_plain_lines_tell_of_guards_and_how_to_go_on() -> None:
    out = io.StringIO()
    lines = PlainLines(Console(file=out, width=200))
    lines.show(Snapshot(cursor="", job=job_view()))
    lines.show(Step(cursor="", step=0, time=START, metrics={"eval/reward_mean": 0.05}))
    lines.show(step(1, **{"eval/reward_mean": 0.5}))
    lines.show(happened("guard", "guard: objective/kl above 25 (pause)"))
    lines.show(happened("paused", "paused at step 1: objective/kl above 25"))
    lines.show(End(cursor="", job=ended(JobState.SUCCEEDED, stop_reason="early_stop")))
    zero, one, guard, paused, end = out.getvalue().splitlines()
    assert zero == "step 0/10  eval_reward 0.05"
    assert one == "step 1/10  reward 0.1  eval_reward 0.5"
    assert guard.endswith("guard: objective/kl above 25 (pause)")
    assert paused.endswith("paused at step 1: objective/kl above 25 (go on with: ppo resume job_01)")
    assert end == "succeeded (early_stop) after 1m 39s"


def test_a_board_forgets_what_was_rolled_back() -> None:
    out = io.StringIO()
    board = Board(Console(file=out, width=120, force_terminal=True))
    board.show(Snapshot(cursor="", job=job_view()))
    for number in range(1, 10):
        board.show(step(number))
    board.show(happened("rolled_back", "rolled back from step 9 to step 2", step=9, to_step=2))
    assert board._series["env/reward_mean"] == {1: 0.1, 2: 0.2}
    board.show(step(3, **{"env/reward_mean": 0.9}))
    assert board._series["env/reward_mean"] == {1: 0.1, 2: 0.2, 3: 0.9}
    board.close()
    assert "rolled back from step 9 to step 2" in out.getvalue()
