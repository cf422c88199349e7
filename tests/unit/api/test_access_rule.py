"""Which addresses are this machine only, and which keys can be read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from api import access
from api.access import TRUSTED_SECONDS, KnownCallers, is_loopback
from api.idempotency import checked, from_header
from api.request_id import request_id
from jobs.auth import Principal
from jobs.errors import InvalidArgument


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "localhost.example.org", "127.0.0.1.example.org"])
def test_reachable_from_elsewhere(host: str):
    assert not is_loopback(host)


def test_an_idempotency_key_is_the_same_with_and_without_quotes():
    assert from_header('"8e03978e-40d5"') == from_header("8e03978e-40d5") == "8e03978e-40d5"
    assert from_header(None) is None


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "a\n", 'a"b', "x" * 129])
def test_other_keys_are_refused(key: str):
    with pytest.raises(InvalidArgument):
        checked(key)


def test_a_request_id_is_kept_where_it_is_fit_for_a_log_line():
    assert request_id("trace-1.a:b_c") == "trace-1.a:b_c"
    made = {request_id(given) for given in (None, "", "a b", 'x"y', "x" * 129, "a\n")}
    assert len(made) == 6
    assert all(len(value) == 32 for value in made)


def test_a_caller_is_known_for_a_second_and_only_by_the_same_key(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now[0]))
    known = KnownCallers()
    known.add("Bearer a", Principal("ann"))
    assert known.get("Bearer a") == Principal("ann")
    assert known.get("Bearer b") is None
    now[0] += TRUSTED_SECONDS - 0.01
    assert known.get("Bearer a") == Principal("ann")
    now[0] += 0.01
    assert known.get("Bearer a") is None
    assert "Bearer" not in repr(known)


def test_callers_without_number_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "_MOST_KEYS", 3)
    known = KnownCallers()
    for number in range(4):
        known.add(f"Bearer {number}", Principal("ann"))
    assert [known.get(f"Bearer {number}") is None for number in range(4)] == [True, True, True, False]
