"""Every route that asks for a caller, and every rpc, says in one table which scope it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from api.access import permit
from api.http.app import ROUTERS
from api.http.deps import principal_of
from api.operations import OPERATIONS, Operation, of_route, of_rpc
from api.rpc.server import FILES
from jobs.errors import Forbidden
from jobs.principal import Principal, Scope
from tests.support.source_tree import sources


def routes() -> set[str]:
    """Routes that are for a caller; the others are open on purpose, as `test_access_http` lists them."""
    found = [route for router in ROUTERS for route in router.routes]
    asked = [route for route in found if isinstance(route, APIRoute) and _needs_caller(route)]
    return {f"{method} {route.path}" for route in asked for method in route.methods - {"HEAD"}}


def _needs_caller(route: APIRoute) -> bool:
    return any(dependency.call is principal_of for dependency in _all(route.dependant))


def _all(dependant: Any) -> Iterator[Any]:
    for child in dependant.dependencies:
        yield child
        yield from _all(child)


def rpcs() -> set[str]:
    return {
        f"{service.name}/{method.name}"
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }


def test_every_route_has_its_row_and_no_row_is_left_over():
    assert {row.route for row in OPERATIONS if row.route} == routes()


def test_every_rpc_has_its_row_and_no_row_is_left_over():
    ours = {row.rpc for row in OPERATIONS if row.rpc and not row.rpc.startswith("/grpc.")}
    assert ours == rpcs()


def test_names_and_places_are_unique():
    for column in ("action", "route", "rpc"):
        values = [getattr(row, column) for row in OPERATIONS if getattr(row, column)]
        assert len(set(values)) == len(values)


def test_what_is_in_no_row_needs_an_administrator():
    for operation in (of_route("POST", "/v1/new"), of_rpc("/ppo.v1.JobService/New"), of_route("BREW", "/v1/jobs")):
        with pytest.raises(Forbidden):
            permit(Principal("ann"), operation)
        permit(Principal("ann", frozenset({Scope.ADMIN})), operation)


def test_only_reads_come_with_the_scope_read():
    for row in OPERATIONS:
        if row.route and row.scope in (Scope.READ, None):
            assert row.route.startswith("GET "), row


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_with_one_scope_may_do_what_needs_that_one(scope: Scope):
    caller = Principal("ann", frozenset({scope}))
    allowed = {row.scope for row in OPERATIONS if _allowed(caller, row)}
    assert allowed == ({None, *Scope} if scope is Scope.ADMIN else {None, scope})


def _allowed(caller: Principal, row: Operation) -> bool:
    try:
        permit(caller, row)
    except Forbidden:
        return False
    return True


UNCHANGING = {"job.plan", "job.generate", "job.verify_resume", "reward.preview", "key.list", "quota.get", "audit.list"}
"""They need more than `read`, for the work they cause or for what they show, and change nothing."""


def recorded() -> set[str]:
    """Every action that the domain writes into the audit log."""
    text = "".join(source.text for source in sources(("jobs",)))
    return set(re.findall(r'(?:audit\.record|_changed)\(\s*session,\s*principal,\s*"([a-z_.]+)"', text))


def test_every_change_is_recorded_under_the_name_in_the_table():
    assert recorded() == {row.action for row in OPERATIONS if row.changes} - UNCHANGING
