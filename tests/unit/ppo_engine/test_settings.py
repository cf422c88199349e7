"""The environment of an engine process."""

from __future__ import annotations

import os

import pytest

from ppo_engine.settings import prepare_environment


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_huge_pages_are_asked_for_unless_the_operator_decided(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if given is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", given)
    prepare_environment()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == expected
