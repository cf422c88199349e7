"""JSON that no two parsers read differently."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Parse without NaN, Infinity and a name twice in one object.

    Raises:
        ValueError: anything else than strict JSON; the message says where.
        RecursionError: nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, item in pairs:
        if name in value:
            raise ValueError(f"the name `{name[:64]}` occurs twice in one object")
        value[name] = item
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
