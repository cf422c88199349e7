"""Documents that every database and every protocol can carry.

JSON allows what PostgreSQL, protobuf or a reader's patience do not: NUL characters, half surrogate pairs, numbers
beyond 64 bits, a thousand levels. Python's parser also lets NaN and Infinity through.
"""

from __future__ import annotations

import math
from typing import Any

from jobs.errors import Problem

Loc = tuple[str | int, ...]

MAX_DEPTH = 32
MAX_PROBLEMS = 200
"""Nobody reads more, and a hostile document has millions."""
_INT64 = 2**63


def plain(data: Any, loc: Loc = ()) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return a copy of an object without what cannot be stored, and a problem for each thing left out.

    Whole numbers written with a fraction of zero (`40.0`) become integers, as JSON Schema reads them. The copy is None
    where `data` is no object at all.
    """
    if not isinstance(data, dict):
        return None, _report([], loc, "wrong_type", "must be an object")
    problems: list[Problem] = []
    copy = _copy(data, loc, problems)
    return (copy if isinstance(copy, dict) else None), problems


def pointer(loc: Loc) -> str:
    """JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)


def storable(text: str) -> str:
    """`text` with what a database refuses replaced by U+FFFD."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _copy(value: Any, loc: Loc, problems: list[Problem]) -> Any:
    if len(loc) > MAX_DEPTH:
        _report(problems, loc[:MAX_DEPTH], "too_deep", f"nested more than {MAX_DEPTH} levels")
        return None
    if isinstance(value, dict):
        return {key: _copy(item, (*loc, key), problems) for key, item in value.items() if _good_key(key, loc, problems)}
    if isinstance(value, list):
        return [_copy(item, (*loc, index), problems) for index, item in enumerate(value)]
    code, detail = _fault(value)
    if code:
        _report(problems, loc, code, detail)
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _good_key(key: Any, loc: Loc, problems: list[Problem]) -> bool:
    code, detail = _fault(key) if isinstance(key, str) else ("wrong_type", "every name must be text")
    if code:
        _report(problems, loc, code, detail)
    return not code


def _fault(value: Any) -> tuple[str, str]:
    """Code and sentence for a scalar that cannot be stored; two empty strings for one that can."""
    if isinstance(value, str) and storable(value) != value:
        return "bad_character", "must not contain NUL or half a surrogate pair"
    if isinstance(value, float) and not math.isfinite(value):
        return "not_finite", "must be a finite number"
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return "out_of_range", "must fit in 64 bits"
    if value is not None and not isinstance(value, str | float | int):
        return "wrong_type", "must be a JSON value"
    return "", ""


def _report(problems: list[Problem], loc: Loc, code: str, detail: str) -> list[Problem]:
    if len(problems) < MAX_PROBLEMS:
        problems.append(Problem(pointer=storable(pointer(loc)), code=code, detail=detail))
    return problems
