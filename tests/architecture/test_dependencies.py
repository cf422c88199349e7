"""Every import is a dependency that pyproject.toml declares for the room that imports it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.support.architecture import imports
from tests.support.source_tree import ROOMS, ROOT, Source, sources

OWN = {*ROOMS, "migrations", "tests", "examples", "benchmarks", "deploy", "docs"}
EXTRAS = {
    "ppo_client": ("report",),
    "jobs": ("domain", "parquet"),
    "migrations": ("domain",),
    "api": ("api",),
    "worker": ("worker",),
    "ppo_engine": ("engine", "wandb"),
    "examples": ("all",),
    "benchmarks": ("dev",),
    "deploy": ("dev",),
    "docs": ("dev",),
    "tests": ("dev",),
}
KIN = {
    "annotated_types": "pydantic",
    "anyio": "fastapi",
    "kombu": "celery",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
}
"""Packages that another one's interface is made of: whoever declares that one has them."""
ELSEWHERE = {"benchmarks/trl_side.py"}
"""Scripts that run in an environment of their own, which `benchmarks/setting_up.py` makes."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def normal(requirement: str) -> str:
    """`Psycopg[binary]>=3` is `psycopg`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]).lower()


def declared(extras: tuple[str, ...]) -> set[str]:
    """Distributions of the base install and of some extras, followed through `ppo-service[…]`."""
    found = {normal(requirement) for requirement in PROJECT["dependencies"]}
    for extra in extras:
        for requirement in PROJECT["optional-dependencies"][extra]:
            inner = re.match(r"ppo-service\[(.+)\]", requirement)
            found |= declared(tuple(inner[1].split(","))) if inner else {normal(requirement)}
    return found


@cache
def distributions() -> Mapping[str, list[str]]:
    """Distributions by the name that is imported; reads the whole environment, so once."""
    return packages_distributions()


def undeclared(source: Source) -> list[str]:
    allowed, owners = declared(EXTRAS[source.room]), distributions()
    beside = {path.stem for path in (ROOT / source.path).parent.glob("*.py")}  # a script's neighbours
    outside = {module.split(".")[0] for _, module in imports(source.tree)} - OWN - beside - sys.stdlib_module_names
    # An extra that is not installed here is known by the name that is imported.
    found = {name: {normal(owner) for owner in [*owners.get(name, [name]), KIN.get(name, "")]} for name in outside}
    return sorted(name for name, makers in found.items() if not makers & allowed)


@pytest.mark.parametrize("room", EXTRAS)
def test_imports_are_declared(room):
    found = [source for source in sources([room]) if source.path not in ELSEWHERE]
    assert {source.path: names for source in found if (names := undeclared(source))} == {}


@pytest.mark.parametrize(
    ("path", "text"),
    [("jobs/x.py", "import celery"), ("api/x.py", "import torch"), ("worker/x.py", "import nowhere_to_be_found")],
)
def test_an_undeclared_import_is_noticed(path, text):
    assert undeclared(Source(path, text))


def test_every_declared_package_is_locked():
    locked = {normal(line) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line[:1].isalnum()}
    assert declared(("dev",)) - locked == set()
