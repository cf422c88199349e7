"""The OpenAPI document without a running service."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.api_pages import openapi

__all__ = ["operations", "success"]


@cache
def operations() -> dict[str, dict[str, Any]]:
    """Every operation by its id, with `path` and `method` added."""
    return dict(_operations())


def _operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            yield operation["operationId"], {**operation, "path": path, "method": method.upper()}


def success(operation: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the JSON that a success answers with; None where it answers with something else."""
    for status in ("200", "201", "202"):
        content = operation["responses"].get(status, {}).get("content", {})
        if "application/json" in content:
            schema: dict[str, Any] = content["application/json"]["schema"]
            return schema
    return None
