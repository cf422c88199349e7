"""`python -m ppo_engine replay CASE.json`: the same numbers through the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppo_engine.stats import SCALARS
from tests.golden.replay import DATA, cases
from tests.support.tolerances import golden

pytestmark = pytest.mark.slow


def run(folder: Path, case: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    path = folder / "case.json"
    path.write_text(json.dumps(case))
    command = [sys.executable, "-m", "ppo_engine", "replay", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for item in DATA.iterdir():
        (tmp_path / item.name).symlink_to(item)
    return tmp_path


def test_a_case_is_replayed_one_line_per_step(folder: Path) -> None:
    case = next(case for case in cases() if (case["base"], case["variant"]) == ("llama", "default"))
    done = run(folder, case)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(case["steps"])
    for line, step in zip(lines, case["steps"], strict=True):
        theirs = {key: value for key, value in step["stats"].items() if not isinstance(value, list)}
        assert {key: line["stats"][key] for key in theirs} == golden(theirs)
        assert set(line["stats"]) <= set(SCALARS)
        assert line["kl_coef_after"] == golden(step["kl_coef_after"])
        assert line["v_head_weight"] == golden(step["weights_after"]["v_head_weight"])


def test_a_broken_case_says_what_is_missing(folder: Path) -> None:
    done = run(folder, {"cfg": {}, "steps": []})
    assert done.returncode == 1
    assert "overrides, policy, reference, pad_token_id" in done.stdout
