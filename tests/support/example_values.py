"""What the names in the examples of docs/twins.py stand for while a test runs them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from docs.twins import PREVIEW, SPEC, TWINS
from tests.support.embedded_service import wait_for
from tests.support.page_examples import Answer

NOT_TWICE = ("delete_dataset", "create_webhook", "delete_webhook")
"""Operations that the second door cannot repeat with the same values."""


@dataclass(frozen=True)
class Keyed:
    """A service, and a key that may do everything."""

    url: str
    grpc: str
    key: str

    def asked(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON that it answers with."""
        headers = {"Authorization": f"Bearer {self.key}", **options.pop("headers", {})}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=30, **options)
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
        return document


def values_for(operation: str, service: Keyed, answers: Mapping[str, Answer]) -> dict[str, str]:
    """The names that an operation's example uses, with values; `answers` are those of earlier operations."""
    twin = TWINS[operation]
    text = f"{twin.call}{twin.request}{twin.body}"
    makers: dict[str, Callable[[], str]] = {
        "JOB": lambda: str(_finished(service, answers)["id"]),
        "STEP": lambda: str(_finished(service, answers)["last_checkpoint_step"]),
        "WAITING": lambda: _waiting(service, operation),
        "CANCELLED": lambda: str(service.asked("POST", f"/v1/jobs/{_waiting(service, operation)}/cancel")["id"]),
        "DATASET": lambda: str(json.loads(answers["add_dataset"].body)["id"]),
        "UNUSED_DATASET": lambda: _unused_dataset(service),
        "URL": _address,
        "KEY": lambda: str(service.asked("POST", "/v1/keys", json={"name": "unused"})["id"]),
        "UNWANTED": lambda: _cancelled_errand(service),
        "ERRAND": lambda: str(json.loads(answers["preview_reward"].body)["id"]),
    }
    values = {name: make() for name, make in makers.items() if f"${name}" in text}
    if "$WEBHOOK" in text:
        values["WEBHOOK"] = str(service.asked("POST", "/v1/webhooks", json={"url": _address()})["id"])
    if "$DELIVERY" in text or operation == "deliveries":
        values["DELIVERY"] = _delivery(service, f"/v1/webhooks/{values['WEBHOOK']}")
    if operation == "deliveries":
        # No further attempt: both doors must see the same.
        service.asked("PATCH", f"/v1/webhooks/{values['WEBHOOK']}", json={"enabled": False})
    return values


def _finished(service: Keyed, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """The job of the example that submits one, at its end."""
    path = f"/v1/jobs/{json.loads(answers['submit'].body)['id']}"
    job = wait_for(lambda: found if (found := service.asked("GET", path))["done"] else None)
    assert job["state"] == "succeeded", job["error"]
    return job


def _waiting(service: Keyed, operation: str) -> str:
    """A job in a queue that no worker reads."""
    own = {"name": f"for-{operation.replace('_', '-')}", "resources": {"queue": "nobody-reads-this"}, "labels": {}}
    return str(service.asked("POST", "/v1/jobs", json={**SPEC, **own})["id"])


def _unused_dataset(service: Keyed) -> str:
    rows = f'{{"prompt": "{uuid.uuid4()}"}}\n'
    headers = {"Content-Type": "application/jsonl"}
    return str(service.asked("POST", "/v1/datasets?name=unused.jsonl", content=rows, headers=headers)["id"])


def _cancelled_errand(service: Keyed) -> str:
    """The examples cancel it again, which is harmless: an engine that runs already would end between the two."""

    def cancelled() -> str | None:
        made = service.asked("POST", "/v1/rewards/preview?timeout=0", json=PREVIEW)
        found = service.asked("POST", f"/v1/errands/{made['id']}/cancel")
        return str(found["id"]) if found["state"] == "cancelled" else None

    return wait_for(cancelled)


def _address() -> str:
    """Where nobody listens."""
    return f"https://{uuid.uuid4()}.invalid/hook"


def _delivery(service: Keyed, webhook: str) -> str:
    """A failed attempt."""
    service.asked("POST", f"{webhook}/test")
    found, *_ = wait_for(lambda: service.asked("GET", f"{webhook}/deliveries")["items"])
    return str(found["id"])
