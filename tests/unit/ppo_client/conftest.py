"""What all tests of the command share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are printed 160 columns wide. The console reads COLUMNS once, at whichever test imports it first."""
    monkeypatch.setattr("ppo_client.commands.options.console._width", 160)
