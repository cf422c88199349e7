"""Paths and names in requests: every field of the models that names a file is tried, so that none is forgotten."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from jobs.db import Database
from jobs.spec import JobSpec
from ppo_engine.config import OneOf
from ppo_engine.config.base import Config
from ppo_engine.errands import PreviewRequest
from tests.support.databases import copy_sqlite
from tests.support.hostile import HOSTILE_PATHS, root_with_ways_out
from tests.support.http_api import App, app_on, settings
from tests.support.problem_json import problem
from tests.support.specs import spec_document

Loc = tuple[str | int, ...]
_PATH = re.compile(r"(?:^|_)(?:path|file|folder|dir|directory|filename)$")
_REQUIRED: dict[str, dict[str, Any]] = {"evaluation": {"every_steps": 1}, "rewards": {"name": "r"}}
"""What stands beside a path in the smallest part of a spec that has one."""


def fields(model: type[BaseModel], loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Place and type of every field of a document, lists by their first member."""
    for name, field in model.model_fields.items():
        for kind, more in _kinds(field.annotation):
            yield (*loc, name, *more), kind
            if isinstance(kind, type) and issubclass(kind, Config):
                yield from fields(kind, (*loc, name, *more))


def _kinds(annotation: Any, more: Loc = ()) -> Iterator[tuple[Any, Loc]]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        yield from _kinds(arguments[0], (*more, 0))
    elif origin is typing.Annotated:
        yield from _kinds(arguments[0], more)
    elif arguments and origin is not dict:
        for argument in arguments:
            yield from _kinds(argument, more)
    else:
        yield annotation, more


def places(model: type[BaseModel], name: re.Pattern[str]) -> list[Loc]:
    return [loc for loc, kind in fields(model) if kind is str and name.search(str(loc[-1]))]


SPEC_PATHS, PREVIEW_PATHS = places(JobSpec, _PATH), places(PreviewRequest, _PATH)
HUBS = places(JobSpec, re.compile(r"^(hub|revision)$"))


def with_value(model: type[BaseModel], loc: Loc, value: Any) -> Any:
    """The smallest document that has `value` at `loc`."""
    if not loc:
        return value
    head, rest = loc[0], loc[1:]
    if isinstance(head, int):
        return [with_value(model, rest, value)]
    inner = next((kind for kind, _ in _kinds(model.model_fields[head].annotation) if _is_config(kind)), model)
    part = with_value(inner, rest, value)
    if isinstance(part, list) and isinstance(part[0], dict):
        part = [{**_REQUIRED.get(head, {}), **part[0]}]
    elif isinstance(part, dict):
        part = {**_REQUIRED.get(head, {}), **part}
    return {head: part}


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Config)


def spec_with(loc: Loc, value: Any) -> dict[str, Any]:
    part = with_value(JobSpec, loc, value)
    base = spec_document()
    for name, given in part.items():
        own = base.get(name)
        alternatives = isinstance(own, dict) and not issubclass(_kind_of(name), OneOf)
        base[name] = {**own, **given} if alternatives else given
    return base


def _kind_of(name: str) -> type[BaseModel]:
    return next(kind for kind, _ in _kinds(JobSpec.model_fields[name].annotation) if _is_config(kind))


def _pointer(loc: Loc) -> str:
    return "".join(f"/{part}" for part in loc)


@pytest.fixture(scope="module")
def walled(sqlite_template_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """An app whose only root has one file and many ways out."""
    home = tmp_path_factory.mktemp("walled")
    root_with_ways_out(home / "models")
    url = copy_sqlite(sqlite_template_file, home)
    db = Database(url)
    with app_on(db, settings(home, url)) as running:
        yield running
    db.dispose()


def test_the_places_are_found_at_all() -> None:
    found = {_pointer(loc) for loc in SPEC_PATHS}
    assert found >= {
        "/model/policy/path",
        "/model/adapter/path",
        "/model/reference/source/path",
        "/model/value/separate/source/path",
        "/rewards/0/model/source/path",
        "/prompts/file/path",
        "/ptx/texts/file/path",
        "/evaluation/prompts/file/path",
    }
    assert [_pointer(loc) for loc in PREVIEW_PATHS] == ["/rewards/0/model/source/path"]


@pytest.mark.parametrize("loc", SPEC_PATHS, ids=_pointer)
def test_no_path_of_a_spec_leads_out_of_the_roots(walled: App, loc: Loc) -> None:
    for path in HOSTILE_PATHS:
        body = problem(walled.post("/v1/jobs", json=spec_with(loc, path)), 422, "invalid_spec")
        found = {error["pointer"]: error["code"] for error in body["errors"]}
        assert found.get(_pointer(loc)) in {"source_unusable", "bad_character", "too_long"}, (path, body)


@pytest.mark.parametrize("loc", PREVIEW_PATHS, ids=_pointer)
def test_no_path_of_a_preview_leads_out_of_the_roots(walled: App, loc: Loc) -> None:
    for path in HOSTILE_PATHS:
        asked = {**with_value(PreviewRequest, loc, path), "texts": [{"prompt": "a", "response": "b"}]}
        body = problem(walled.post("/v1/rewards/preview", json=asked), 422, "invalid_request")
        assert _pointer(loc) in {error["pointer"] for error in body["errors"]}, (path, body)


@pytest.mark.parametrize("loc", HUBS, ids=_pointer)
@pytest.mark.parametrize("name", ["../x", "/etc", "a/../b", "a/b/c", "..", "~", "a/b\n", "file:///etc", "C:\\x"])
def test_no_name_of_the_hub_is_a_path(walled: App, loc: Loc, name: str) -> None:
    if loc[-1] == "revision" and name == "a/b/c":
        return  # branches of git may be called so
    source = {"hub": name} if loc[-1] == "hub" else {"hub": "a/b", "revision": name}
    body = problem(walled.post("/v1/jobs", json=spec_with(loc[:-1], source)), 422, "invalid_spec")
    assert (_pointer(loc), "bad_format") in {(error["pointer"], error["code"]) for error in body["errors"]}


IDS = ["..%2f..%2f..%2fetc%2fpasswd", "%2e%2e", "job_%00", "%0d%0aX-Evil:%201", "a%2f..%2fb", "x" * 3000, "%ff%fe"]


def test_no_id_in_a_url_is_a_path(walled: App) -> None:
    """Every route that takes an id says that there is no such thing, and nothing else."""
    document = walled.get("/openapi.json").json()
    tried = 0
    for path, methods in document["paths"].items():
        for method in methods if "{" in path and "{owner}" not in path else ():  # an owner is any text
            for bad in IDS:
                url = re.sub(r"\{step\}", "1", path)
                answer = walled.request(method.upper(), re.sub(r"\{\w+\}", bad, url))
                tried += 1
                assert answer.status_code in {404, 422, 415, 400}, (method, path, bad, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                assert "x-evil" not in answer.headers
                assert "root:" not in answer.text
    assert tried > 50
