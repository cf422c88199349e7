"""What every refusal over HTTP must look like."""

from __future__ import annotations

from typing import Any

import httpx

from api.status import TABLE

BY_CODE = {kind.code: status for kind, status in TABLE.items()}


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document, after checking all that holds for every one of them."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["code"] == code
    assert document["status"] == status == BY_CODE[code].http
    assert document["type"] == f"/problems/{code}"
    assert document["title"] == BY_CODE[code].title
    assert document["detail"]
    assert isinstance(document["detail"], str)
    assert document["request_id"] == response.headers["x-request-id"]
    return document


def pointers(document: dict[str, Any]) -> dict[str, str]:
    """Code of each single problem by its place."""
    return {item["pointer"]: item["code"] for item in document["errors"]}
