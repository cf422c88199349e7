"""The sums of the arithmetic example have the right answers, and none that is held out was trained on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from examples.make_sums import SOLVED, line, main, sums
from ppo_engine.config import RuleReward
from ppo_engine.rewards.exchange import Exchange
from ppo_engine.rewards.rules import build_rule


def test_every_sum_is_there_once_and_the_solved_one_is_not() -> None:
    train, held_out = sums(20)
    everything = {(a, b) for a in range(1, 21) for b in range(1, 21)} - {SOLVED, SOLVED[::-1]}
    assert len(train) + len(held_out) == len(everything)
    assert {*train, *held_out} == everything


def test_a_held_out_sum_was_not_seen_the_other_way_round() -> None:
    train, held_out = sums(20)
    assert held_out
    assert not {tuple(sorted(pair)) for pair in train} & {tuple(sorted(pair)) for pair in held_out}


def test_the_files_are_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        monkeypatch.setattr(sys, "argv", ["make_sums.py", str(tmp_path / name), "--largest", "9"])
        main()
    for name in ("sums.jsonl", "sums-held-out.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("pair", [(1, 1), (9, 20), (20, 20)])
def test_the_answer_is_right_and_the_rule_reads_it(pair: tuple[int, int]) -> None:
    record = json.loads(line(*pair))
    asked = re.fullmatch(r"(\d+) \+ (\d+) = (\d+)\n(\d+) \+ (\d+) =", record["prompt"])
    assert asked is not None
    first, second, result, a, b = map(int, asked.groups())
    assert (first + second, a + b) == (result, record["answer"])
    right, wrong = (Exchange(record["prompt"], f" {a + b + off}", record, 3) for off in (0, 1))
    assert build_rule(RuleReward(name="numeric"))([right, wrong]) == [1.0, 0.0]
