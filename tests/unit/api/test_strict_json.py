"""Bodies that two parsers would read differently are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import MalformedBody
from api.http.body import parse_object

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values))
def test_any_json_object_is_read_as_it_is(value: dict[str, object]):
    assert parse_object(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1} {"b": 2}',
        b'\xff\xfe{"a": 1}',
        b'{"a": 1, "b": {"c": 1, "c": 2}}',
        b'{"a": 1, "\\u0061": 2}',
        b"[" * 200_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_not_strict_json_is_refused(body: bytes):
    with pytest.raises(MalformedBody):
        parse_object(body)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_only_an_object_will_do(body: bytes):
    with pytest.raises(MalformedBody, match="must be a JSON object"):
        parse_object(body)


def test_a_hundred_thousand_names_are_checked_in_linear_time():
    names = ", ".join(f'"n{index}": 0' for index in range(100_000))
    with pytest.raises(MalformedBody, match="`n99999` occurs twice"):
        parse_object(f'{{{names}, "n99999": 1}}'.encode())
