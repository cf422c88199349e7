"""A stranger with a key of his own asks every route and every rpc for somebody else's things, and learns nothing.

Both walks take what there is from the doors themselves: something new is asked as well, and where it needs an id or a
body that is not known here, the test says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from api.operations import OPERATIONS, of_route
from api.rpc.server import FILES
from jobs.auth import Principal, create_key
from jobs.clock import db_time
from jobs.db import Database
from jobs.ids import sortable_id
from jobs.principal import Scope
from jobs.tables import Errand
from tests.support.attempts import claimed, record_steps_and_checkpoint, submitted
from tests.support.http_api import PEPPER, Served, served_on, settings
from tests.support.specs import spec_document

MARK = "belongs-to-bob"
"""In every text of the victim's."""
PATCH = {"webhook_id": {"description": "mine now"}, "job_id": {"name": "mine now"}}
BODIES: dict[str, Any] = {
    "POST /v1/jobs/{job_id}/fork": {},
    "POST /v1/jobs/{job_id}/generate": {"prompts": ["a"]},
    "POST /v1/jobs/{job_id}/verify-resume": {},
    "PUT /v1/quotas/{owner:path}": {"max_queued_jobs": 0},
}
CALLS: dict[str, Any] = {"Generate": {"request": {"prompts": ["a"]}}, "CreateKey": {"owner": ""}}
"""What a call must hold beside ids to get as far as the question whose the thing is; keys are made for the caller."""


@pytest.fixture(scope="module")
def house(sqlite_template_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both doors; hosts of webhooks may be here."""
    home = tmp_path_factory.mktemp("house")
    url = f"sqlite:///{home / 'ppo.db'}"
    (home / "ppo.db").write_bytes(sqlite_template_file.read_bytes())
    db = Database(url)
    given = settings(home, url, http_port=0, grpc_port=0, webhook_hosts=["127.0.0.1"], rate_limit_burst=10_000)
    with served_on(db, given) as served:
        yield served
    db.dispose()


def headers(served: Served, owner: str) -> dict[str, str]:
    scopes = set(Scope) - {Scope.ADMIN}
    return {"authorization": f"Bearer {create_key(served.context.db, owner, PEPPER, scopes=scopes)}"}


@pytest.fixture(scope="module")
def ids(house: Served) -> dict[str, str]:
    """The victim has one of everything; its ids by the names that routes and messages give them."""
    db, bob = house.context.db, headers(house, "bob")
    job_id = submitted(db, Principal("bob"), name=MARK, labels={"team": MARK}, prompts={"inline": [MARK]})
    record_steps_and_checkpoint(db, claimed(db, job_id), 1, 2)
    with httpx.Client(base_url=house.http, headers=bob, timeout=60) as http:
        dataset = http.post(
            "/v1/datasets",
            params={"name": f"{MARK}.jsonl"},
            content=json.dumps({"prompt": MARK}).encode(),
            headers={"Content-Type": "application/jsonl"},
        ).json()
        webhook = http.post("/v1/webhooks", json={"url": f"http://127.0.0.1:9/{MARK}", "description": MARK}).json()
        key = http.post("/v1/keys", json={"name": MARK}).json()
        assert MARK in http.get("/v1/jobs").text + http.get("/v1/keys").text
    errand_id = sortable_id("errand")
    errand = {"id": errand_id, "owner_id": "bob", "kind": "preview_reward", "queue": "default", "request": {"a": MARK}}
    with db.transaction() as session:
        session.execute(sa.insert(Errand).values(**errand, expire_time=db_time(600)))
    return {
        "job_id": job_id,
        "dataset_id": dataset["id"],
        "webhook_id": webhook["id"],
        "delivery_id": sortable_id("whd"),
        "message_id": sortable_id("msg"),
        "errand_id": errand_id,
        "key_id": key["id"],
        "owner": "bob",
        "step": "2",
    }


def routes(house: Served) -> list[tuple[str, str]]:
    """Method and path template of everything under /v1, with Starlette's converters."""
    rows = [row.route.split(" ") for row in OPERATIONS if row.route]
    shown = httpx.get(f"{house.http}/openapi.json", timeout=60).json()["paths"]
    documented = {(m.upper(), path) for path, item in shown.items() for m in item if path.startswith("/v1/")}
    assert {(method, path.replace(":path", "")) for method, path in rows} == documented
    return [(method, path) for method, path in rows]


def test_no_route_tells_a_stranger_anything(house: Served, ids: dict[str, str]):
    wrong = []
    with httpx.Client(base_url=house.http, headers=headers(house, "ann"), timeout=60) as ann:
        for method, path in routes(house):
            names = [name.partition(":")[0] for name in re.findall(r"{([^}]+)}", path)]
            where = path.replace(":path", "").format_map(ids)
            answer = ann.request(method, where, **_body(method, path, names))
            own = of_route(method, path).scope is not Scope.ADMIN
            wanted = {403} if not own else {404} if names else {200, 201, 400, 415, 422, 503}
            if answer.status_code not in wanted or MARK in answer.text or ids["job_id"] in answer.text:
                wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
    assert wrong == []


def _body(method: str, path: str, names: list[str]) -> dict[str, Any]:
    if f"{method} {path}" in BODIES:
        return {"json": BODIES[f"{method} {path}"]}
    if method == "PATCH":
        return {"json": PATCH[names[-1]]}
    return {"json": {}} if method == "POST" and not names else {}


def test_no_rpc_tells_a_stranger_anything(house: Served, ids: dict[str, str]):
    ann, wrong = list(headers(house, "ann").items()), []
    methods = [method for file in FILES for service in file.services_by_name.values() for method in service.methods]
    assert len(methods) > 30
    with grpc.insecure_channel(house.grpc) as channel:
        for method in methods:
            request = _request(method, ids)
            code, told = _call(channel, method, request, ann)
            about = [
                field.name for field in method.input_type.fields if field.name in ids and field.name.endswith("_id")
            ]
            refused = code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
            if (about and not refused) or MARK in told or ids["job_id"] in told:
                wrong.append(f"{method.full_name}: {code} {told[:200]}")
    assert wrong == []


def _request(method: MethodDescriptor, ids: dict[str, str]) -> Any:
    """A message with the victim's ids in every field of such a name."""
    values: dict[str, Any] = {}
    for field in method.input_type.fields:
        assert not field.name.endswith("_id") or field.name in {*ids, "request_id"}, f"whose is {field.full_name}?"
        if field.name in ids:
            values[field.name] = ids[field.name]
        elif field.name == "timeout_seconds":
            values[field.name] = 0.0
    values |= CALLS.get(method.name, {})
    return json_format.ParseDict(values, GetMessageClass(method.input_type)())


def _call(channel: grpc.Channel, method: MethodDescriptor, request: Any, metadata: Any) -> tuple[grpc.StatusCode, str]:
    path = f"/{method.containing_service.full_name}/{method.name}"
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
    }
    kind = kinds[method.client_streaming, method.server_streaming]
    answer = GetMessageClass(method.output_type)
    call = kind(path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString)
    try:
        given = call(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=60)
        return grpc.StatusCode.OK, "".join(map(str, given if method.server_streaming else [given]))
    except grpc.RpcError as error:
        return error.code(), str(error.details())


def test_the_victim_still_has_everything(house: Served, ids: dict[str, str]):
    with httpx.Client(base_url=house.http, headers=headers(house, "bob"), timeout=60) as bob:
        for path in ("jobs/{job_id}", "datasets/{dataset_id}", "webhooks/{webhook_id}"):
            assert MARK in bob.get(f"/v1/{path.format_map(ids)}").text
        assert bob.get(f"/v1/errands/{ids['errand_id']}", params={"timeout": 0}).status_code == 202
        job = bob.get(f"/v1/jobs/{ids['job_id']}").json()
        assert (job["state"], job["cancel_request_time"]) == ("running", None)
        assert all(key["revoke_time"] is None for key in bob.get("/v1/keys").json()["items"])


def test_a_submit_cannot_use_what_is_another_owners(house: Served, ids: dict[str, str]):
    spec = spec_document(prompts={"dataset": ids["dataset_id"]})
    refused = httpx.post(f"{house.http}/v1/jobs", json=spec, headers=headers(house, "ann"), timeout=60)
    assert refused.status_code == 422
    assert MARK not in refused.text
