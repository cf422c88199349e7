"""What the client takes from the environment: PPO_URL, PPO_KEY, PPO_MODEL_ROOTS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where the service is and who asks."""

    url: str = DEFAULT_URL
    key: str | None = None


def load() -> ClientSettings:
    """Settings from the environment; an empty variable counts as unset."""
    return ClientSettings(url=os.environ.get("PPO_URL") or DEFAULT_URL, key=os.environ.get("PPO_KEY") or None)


def model_roots() -> list[Path]:
    """Folders in PPO_MODEL_ROOTS."""
    return [Path(part) for part in os.environ.get("PPO_MODEL_ROOTS", "").split(os.pathsep) if part]


def child_environment(defaults: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child of `ppo up`: above `defaults`, below `settings`."""
    return {**defaults, **os.environ, **settings}
