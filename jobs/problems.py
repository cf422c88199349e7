"""Everything wrong with a document at once, in words that its author can act on.

A document is read three times: by `jobs.plain` for what JSON allows and no database stores, by pydantic for every
field, and by the rules that span fields. So that one broken field does not hide the broken rules, the rules also run on
a repaired copy; see `_cross_problems`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobs.errors import Problem
from jobs.mask import mask
from jobs.misplaced import belongs_at
from jobs.plain import MAX_PROBLEMS, Loc, plain, pointer
from jobs.repair import model_at, repaired
from ppo_engine.config import CrossCheck, OneOf

M = TypeVar("M", bound=BaseModel)
Rules = Callable[[M], "list[Problem | CrossCheck]"]

_SHOWN_CHARACTERS = 80

_KINDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
}


def check(
    model: type[M], data: Any, rules: Rules[M] = lambda _: [], *, loc: Loc = ()
) -> tuple[M | None, list[Problem]]:
    """Return the value, if every field is right, and all problems; pointers start at `loc`."""
    value, found = plain(data, loc)
    if value is None:
        return None, found
    try:
        parsed = model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        found += [_field_problem(model, e, loc) for e in errors[:MAX_PROBLEMS]]
        if len(errors) <= MAX_PROBLEMS:  # beyond it the document is not one that somebody wrote
            found += _cross_problems(model, value, rules, [e["loc"] for e in errors])
        return None, _distinct(found)
    return parsed, _distinct([*found, *_rule_problems(value, rules(parsed))])


def nearest(given: Any, allowed: Iterable[str]) -> str | None:
    """The allowed word that `given` most likely meant."""
    words, text = list(allowed), str(given)[:128]
    close = difflib.get_close_matches(text, words, n=3, cutoff=0.6)
    sections = [word for word in words if word.rpartition("/")[2] == text]  # a metric without its section
    begun = [word for word in words if word in close and word.startswith(text)]
    return next(iter(sections or begun or close), None)


def _distinct(problems: list[Problem]) -> list[Problem]:
    """One problem per place, the first found, so that a NaN is not also a wrong type."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.pointer, problem)
    return list(first.values())[:MAX_PROBLEMS]


# --- fields -------------------------------------------------------------------------------------------------------


def _field_problem(model: type[BaseModel], error: ErrorDetails, prefix: Loc) -> Problem:
    loc = tuple(part for part in error["loc"] if part != "[key]")
    where = pointer((*prefix, *loc))
    if error["type"] == "extra_forbidden":
        return _unknown_field(model, loc, where)
    code, detail = sentence(error)
    there = model_at(model, loc)
    if there is not None and code == "wrong_type":
        detail += _fields_of(there)
    allowed = _allowed(there, error)
    given = None if error["type"] == "missing" else shown(error["input"])
    suggestion = nearest(given, allowed) if allowed and isinstance(given, str) else None
    return Problem(pointer=where, code=code, detail=detail, given=given, allowed=allowed, suggestion=suggestion)


def _unknown_field(model: type[BaseModel], loc: Loc, where: str) -> Problem:
    """An unknown field. Its value is not shown: it may be a secret that lost its way."""
    parent, name = model_at(model, loc[:-1]), str(loc[-1])
    allowed = list(parent.model_fields) if parent else []
    sibling = nearest(name, allowed)
    meant = [sibling] if sibling else []
    meant += [path for path in belongs_at(model, name) if path.split(".")[-1] != sibling]
    suggestion = meant[0] if meant else None
    detail = "there is no such field"
    if meant:
        detail += "; did you mean " + " or ".join(f"`{field}`" for field in meant) + "?"
    return Problem(
        pointer=where, code="unknown_field", detail=detail, given=shown(name), allowed=allowed, suggestion=suggestion
    )


def _fields_of(model: type[BaseModel]) -> str:
    """What an object has to have, for one who wrote something else in its place."""
    if issubclass(model, OneOf) and model.alternatives:
        return " with exactly one of " + ", ".join(f"`{name}`" for name in model.alternatives)
    needed = [f"`{name}`" for name, field in model.model_fields.items() if field.is_required()]
    return f" with at least {', '.join(needed)}" if needed else ""


def _allowed(model: type[BaseModel] | None, error: ErrorDetails) -> list[Any] | None:
    if error["type"] == "enum":
        return choices(error)
    if error["type"] == "value_error" and model is not None and issubclass(model, OneOf):
        return list(model.alternatives)
    return None


def choices(error: Mapping[str, Any]) -> list[Any]:
    """The words that an enumeration takes, of pydantic's error about another one."""
    return [word.strip().strip("'") for word in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def sentence(error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and sentence for one of pydantic's error types."""
    kind, ctx = error["type"], error.get("ctx", {})
    if ctx.get("min_length") == 1 and kind in ("string_too_short", "too_short"):
        return "too_short", "must not be empty"
    if kind in _SENTENCES:
        code, sentence = _SENTENCES[kind]
        return code, sentence.format_map(ctx)
    base = kind.removesuffix("_type").removesuffix("_parsing")
    if base in _KINDS:
        return "wrong_type", f"must be {_KINDS[base]}"
    return kind, error["msg"].removeprefix("Value error, ")


_SENTENCES = {
    "missing": ("required", "is required"),
    "finite_number": ("not_finite", "must be a finite number"),
    "greater_than": ("out_of_range", "must be greater than {gt}"),
    "greater_than_equal": ("out_of_range", "must be at least {ge}"),
    "less_than": ("out_of_range", "must be less than {lt}"),
    "less_than_equal": ("out_of_range", "must be at most {le}"),
    "string_too_short": ("too_short", "must have at least {min_length} characters"),
    "string_too_long": ("too_long", "must have at most {max_length} characters"),
    "too_short": ("too_short", "must have at least {min_length} items"),
    "too_long": ("too_long", "must have at most {max_length} items"),
    "string_pattern_mismatch": ("bad_format", "must match {pattern}"),
    "enum": ("unknown_value", "must be {expected}"),
    "value_error": ("invalid", "{error}"),
    "int_from_float": ("wrong_type", "must be a whole number"),
}


def shown(value: Any) -> Any:
    """A value as an error may repeat it: short, masked, and no containers."""
    if isinstance(value, str):
        text = mask(value)
        return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return value if isinstance(value, bool | int | float) else None


# --- rules over several fields ------------------------------------------------------------------------------------


def _rule_problems(data: Any, found: list[Problem | CrossCheck]) -> list[Problem]:
    return [item if isinstance(item, Problem) else _rule_problem(data, item) for item in found]


def _rule_problem(data: Any, rule: CrossCheck) -> Problem:
    given = shown(_value_at(data, rule.loc))
    allowed = list(rule.allowed) or None
    suggestion = nearest(given, rule.allowed) if allowed and isinstance(given, str) else None
    detail = rule.detail + (f"; did you mean `{suggestion}`?" if suggestion else "")
    return Problem(
        pointer=pointer(rule.loc), code=rule.code, detail=detail, given=given, allowed=allowed, suggestion=suggestion
    )


def _cross_problems(model: type[M], data: Any, rules: Rules[M], broken: list[Loc]) -> list[Problem]:
    """Rules that are broken whatever the broken fields should have been.

    The broken fields are given stand-ins, once at the low and once at the high end of their range: a rule that
    complains both times does not depend on them. Complaints about a stand-in itself are left out.
    """
    both: list[list[Problem]] = []
    for high in (False, True):
        stood_in = repaired(model, data, high=high)
        if stood_in is None:
            return []
        both.append(_rule_problems(data, rules(stood_in)))
    low_keys = {(problem.pointer, problem.code) for problem in both[0]}
    roots = [pointer(loc) for loc in broken]
    return [
        problem
        for problem in both[1]
        if (problem.pointer, problem.code) in low_keys
        and not any(f"{problem.pointer}/".startswith(f"{root}/") for root in roots)
    ]


def _value_at(data: Any, loc: Sequence[str | int]) -> Any:
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data
