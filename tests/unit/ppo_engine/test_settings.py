"""The environment of an engine process."""

from __future__ import annotations

import os

import pytest

from ppo_engine.settings import DEFAULTS, prepare_environment


@pytest.mark.parametrize(
    ("name", "wanted", "other"), [("THP_MEM_ALLOC_ENABLE", "1", "0"), ("WANDB_ERROR_REPORTING", "false", "true")]
)
def test_a_variable_is_set_unless_the_operator_decided(
    monkeypatch: pytest.MonkeyPatch, name: str, wanted: str, other: str
) -> None:
    for default in DEFAULTS:
        monkeypatch.delenv(default, raising=False)
    prepare_environment()
    assert os.environ[name] == wanted
    monkeypatch.setenv(name, other)
    prepare_environment()
    assert os.environ[name] == other
