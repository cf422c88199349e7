"""Small valid specs."""

from __future__ import annotations

import copy
from typing import Any

from jobs.spec import JobSpec, parse_spec

_SMALL: dict[str, Any] = {
    "name": "small",
    "model": {"policy": {"hub": "org/model"}},
    "prompts": {"inline": ["The movie was", "My dinner at"]},
    "rewards": [{"name": "sentiment", "rule": {"name": "sentiment"}}],
    "generation": {"max_new_tokens": 8},
    "ppo": {"steps": 5, "batch_size": 4, "minibatch_size": 2, "ppo_epochs": 1},
    "checkpoint": {"every_steps": 2, "keep_last": 2},
}


def spec_document(**overrides: Any) -> dict[str, Any]:
    """A valid spec as JSON. `ppo__steps=3` sets a field inside a part, `labels={…}` a whole part."""
    document = copy.deepcopy(_SMALL)
    for path, value in overrides.items():
        *parents, name = path.split("__")
        part = document
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    return document


def make_spec(**overrides: Any) -> JobSpec:
    """The same, parsed."""
    return parse_spec(spec_document(**overrides))
