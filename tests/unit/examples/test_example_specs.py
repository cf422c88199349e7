"""Every spec in examples/ is one that the service accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.spec import parse_spec

SPECS = sorted((Path(__file__).parents[3] / "examples" / "specs").glob("*.json"))


def test_there_are_specs():
    assert len(SPECS) >= 3


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_is_valid_and_named_like_its_file(path):
    assert parse_spec(json.loads(path.read_text())).name == path.stem
