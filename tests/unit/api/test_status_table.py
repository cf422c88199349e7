"""Every refusal has one row, one code and one meaning for both doors."""

from __future__ import annotations

from http import HTTPStatus

import grpc
import pytest

from api import errors as door_errors
from api.status import TABLE, catalogue, retry_after_seconds, status_of, type_uri
from jobs.errors import InvalidSpec, JobsError, QuotaExceeded, Unavailable


def every_kind() -> list[type[JobsError]]:
    assert door_errors.RouteNotFound.__module__ == "api.errors"
    found, waiting = [], [JobsError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not kind.__module__.startswith("tests."):
            found.append(kind)
    return found


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_every_refusal_has_a_row_of_its_own(kind: type[JobsError]):
    assert kind in TABLE


def test_codes_are_unique_and_are_the_end_of_the_type():
    codes = [kind.code for kind in TABLE]
    assert len(set(codes)) == len(codes)
    assert all(type_uri(kind) == f"/problems/{kind.code}" for kind in TABLE)


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_both_doors_agree_whose_fault_it_is(kind: type[JobsError]):
    ours = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
    assert (TABLE[kind].http >= 500) == (TABLE[kind].grpc in ours)


def test_a_refusal_without_a_row_is_reported_as_its_ancestor():
    class Stricter(InvalidSpec):
        """Made by this test."""

    assert status_of(Stricter("no")).http is HTTPStatus.UNPROCESSABLE_ENTITY


def test_retry_is_advised_where_it_can_help():
    assert retry_after_seconds(QuotaExceeded("full", retry_after_seconds=7)) == 7
    assert retry_after_seconds(Unavailable("away")) == 5
    assert retry_after_seconds(InvalidSpec("no")) is None


def test_the_catalogue_explains_every_row():
    rows = list(catalogue())
    assert [row["code"] for row in rows] == [kind.code for kind in TABLE]
    assert all(row["meaning"] and row["title"] for row in rows)
