"""Make a broken document whole enough that the rules over several fields can be tried on the rest of it."""

from __future__ import annotations

import copy
import json
import math
import types
import typing
from enum import Enum
from typing import Any, TypeVar

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from jobs.plain import Loc
from ppo_engine.config import OneOf

M = TypeVar("M", bound=BaseModel)

_ROUNDS = 8
_FAR = 2**31


def repaired(model: type[M], data: Any, *, high: bool) -> M | None:
    """Return `data` as a model, broken fields replaced by stand-ins or left out; None if that does not help.

    Numbers are replaced by the `high` or low end of their range.
    """
    data = copy.deepcopy(data)
    for _ in range(_ROUNDS):
        try:
            return model.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            # Deepest first: a part that is replaced as a whole must not be looked into afterwards.
            for item in sorted(error.errors(include_url=False), key=lambda e: -len(e["loc"])):
                _repair(model, data, item, high)
    return None


def model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model of the object at `loc`, if there is one."""
    found = _annotation_at(model, loc)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _repair(model: type[BaseModel], data: Any, error: ErrorDetails, high: bool) -> None:
    loc = tuple(part for part in error["loc"] if part != "[key]")
    if not loc:
        return
    parent, name = _parent(data, loc), loc[-1]
    field = _field_at(model, loc)
    if isinstance(parent, list) and isinstance(name, int) and name < len(parent):
        parent[name] = _stand_in(_annotation_at(model, loc), (), high)
    elif isinstance(parent, dict) and field is None:
        parent.pop(name, None)
    elif isinstance(parent, dict) and field is not None:
        if field.is_required() or _is_number(field.annotation):
            parent[name] = _stand_in(field.annotation, field.metadata, high)
        else:
            parent.pop(name, None)


def _parent(data: Any, loc: Loc) -> Any:
    for part in loc[:-1]:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


# --- reading the models -------------------------------------------------------------------------------------------


def _field_at(model: type[BaseModel], loc: Loc) -> FieldInfo | None:
    parent = model_at(model, loc[:-1])
    return parent.model_fields.get(str(loc[-1])) if parent is not None else None


def _annotation_at(model: type[BaseModel], loc: Loc) -> Any:
    here: Any = model
    for part in loc:
        here = _step(here, part)
    return here


def _step(annotation: Any, part: str | int) -> Any:
    """What is under one name or index of a value of this type; None if that cannot be told."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return bare(field.annotation) if field is not None else None
    if typing.get_origin(annotation) in (list, dict, tuple):
        return bare(typing.get_args(annotation)[-1])
    return None


def bare(annotation: Any) -> Any:
    """The type without `Annotated` and `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return bare(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return bare(next(arg for arg in typing.get_args(annotation) if arg is not type(None)))
    return annotation


# --- stand-ins ----------------------------------------------------------------------------------------------------


def _is_number(annotation: Any) -> bool:
    return bare(annotation) in (int, float)


def _stand_in(annotation: Any, metadata: typing.Iterable[Any], high: bool) -> Any:
    """The least value that a field of this type accepts, numbers apart."""
    kind = bare(annotation)
    if kind in (int, float):
        return _end(kind, metadata, high)
    if typing.get_origin(kind) is list:
        return [_stand_in(typing.get_args(kind)[0], (), high)]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _least(kind, high)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    return "stand-in" if kind is str else {}


def _least(model: type[BaseModel], high: bool) -> dict[str, Any]:
    needed = {name for name, field in model.model_fields.items() if field.is_required()}
    if issubclass(model, OneOf):
        needed.add(model.alternatives[0])
    return {
        name: _stand_in(field.annotation, field.metadata, high)
        for name, field in model.model_fields.items()
        if name in needed
    }


def _end(kind: type[int] | type[float], metadata: typing.Iterable[Any], high: bool) -> int | float:
    """One end of a number's range: inside an open bound by 1, or by a hair for a fraction."""
    low_end: float = 0
    high_end: float = _FAR
    nudge = 1 if kind is int else 1e-9
    for bound in metadata:
        match bound:
            case annotated_types.Ge(ge=value):
                low_end = typing.cast(float, value)
            case annotated_types.Gt(gt=value):
                low_end = typing.cast(float, value) + nudge
            case annotated_types.Le(le=value):
                high_end = typing.cast(float, value)
            case annotated_types.Lt(lt=value):
                high_end = typing.cast(float, value) - nudge
    chosen = high_end if high else low_end
    return math.floor(chosen) if kind is int else chosen
