"""Refusals as google.rpc.Status."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2 as details

from api.rpc.errors import DOMAIN, field_path, status
from jobs.errors import IllegalTransition, InvalidArgument, InvalidSpec, JobsError, Problem, Unavailable


def unpacked(error: JobsError, kind: Any) -> Any:
    for packed in status(error, "r1").details:
        message = kind()
        if packed.Unpack(message):
            return message
    return None


def test_the_stable_code_and_the_request_are_named():
    info = unpacked(InvalidSpec("no"), details.ErrorInfo)
    assert (info.reason, info.domain) == ("invalid_spec", DOMAIN)
    assert unpacked(InvalidSpec("no"), details.RequestInfo).request_id == "r1"


def test_every_problem_of_a_spec_is_a_violation_with_its_place_and_advice():
    problems = [
        Problem(pointer="/ppo/steps", code="out_of_range", detail="must be at least 1"),
        Problem(
            pointer="/rewards/0/rule/name",
            code="unknown_rule",
            detail="no rule",
            suggestion="length",
            allowed=["length"],
        ),
    ]
    found = unpacked(InvalidSpec("no", problems=problems), details.BadRequest).field_violations
    assert [(v.field, v.reason) for v in found] == [
        ("spec.ppo.steps", "out_of_range"),
        ("spec.rewards[0].rule.name", "unknown_rule"),
    ]
    assert found[1].description == "no rule; allowed: length; did you mean `length`?"


def test_problems_of_other_parameters_are_not_in_the_spec():
    problem = Problem(pointer="/page_size", code="out_of_range", detail="no")
    found = unpacked(InvalidArgument("no", problems=[problem]), details.BadRequest).field_violations
    assert [v.field for v in found] == ["page_size"]


def test_a_thousand_problems_still_fit_into_the_trailers():
    problems = [Problem(pointer=f"/labels/{n}", code="bad_format", detail="x" * 300) for n in range(1000)]
    message = status(InvalidSpec("no", problems=problems), "r1")
    assert message.ByteSize() < 8000
    found = unpacked(InvalidSpec("no", problems=problems), details.BadRequest).field_violations
    assert found[-1].description == f"{1000 - (len(found) - 1)} more problems do not fit here"


def test_a_long_message_is_cut():
    assert status(InvalidSpec("x" * 100_000), "r1").ByteSize() < 2000


def test_a_conflict_names_the_state_and_what_can_be_done():
    info = unpacked(IllegalTransition("done", state="failed", allowed_actions=["a", "b"]), details.ErrorInfo)
    assert dict(info.metadata) == {"state": "failed", "allowed_actions": "a,b"}


def test_a_retry_is_advised_where_it_can_help():
    assert unpacked(Unavailable("away"), details.RetryInfo).retry_delay.seconds == 5
    assert unpacked(InvalidSpec("no"), details.RetryInfo) is None


def test_a_defect_shows_nothing_of_its_insides():
    message = status(JobsError("password=hunter2"), "r1")
    assert message.code == grpc.StatusCode.INTERNAL.value[0]
    assert b"hunter2" not in message.SerializeToString()


@pytest.mark.parametrize(
    ("pointer", "path"), [("", "spec"), ("/a~1b/0", "spec.a/b[0]"), ("/labels/team~0x", "spec.labels.team~x")]
)
def test_pointers_become_field_paths(pointer: str, path: str):
    assert field_path("spec", pointer) == path
