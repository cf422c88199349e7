"""Exchanges for tests of rewards."""

from __future__ import annotations

from typing import Any

from ppo_engine.rewards import Exchange


def exchange(response: str = "r", *, prompt: str = "", tokens: int = 1, **record: Any) -> Exchange:
    """A prompt with a response and the fields of its JSON line."""
    return Exchange(prompt=prompt, response=response, record=record, response_tokens=tokens)
