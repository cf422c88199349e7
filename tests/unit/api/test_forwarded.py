"""Whose address a request has behind proxies: what a client writes itself is never believed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from api.forwarded import client_address, networks
from api.settings import ApiSettings

PROXIES = networks(["10.0.0.5", "10.1.0.0/16", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # not a proxy of ours
        ("10.0.0.5", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # 6.6.6.6 is what the client claims
        ("10.0.0.5", ["6.6.6.6", "198.51.100.1, 10.1.2.3"], "198.51.100.1"),  # two proxies, two headers
        ("10.0.0.5", ["10.1.2.3"], "10.1.2.3"),
        ("10.0.0.5", ["198.51.100.1, nonsense"], "10.0.0.5"),
        ("::ffff:10.0.0.5", ["[2001:db8::1]"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        (None, ["198.51.100.1"], None),
        ("testclient", ["198.51.100.1"], "testclient"),
    ],
)
def test_the_last_address_that_is_not_a_trusted_proxy(peer: str | None, forwarded: list[str], address: str | None):
    assert client_address(peer, forwarded, PROXIES) == address


def test_nobody_is_trusted_by_default():
    assert ApiSettings().trusted_proxies == []
    assert client_address("127.0.0.1", ["198.51.100.1"], ApiSettings().proxies) == "127.0.0.1"


def test_the_setting_is_a_list_of_addresses_and_networks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PPO_TRUSTED_PROXIES", "10.0.0.5, 10.1.0.0/16,")
    assert ApiSettings().proxies == PROXIES[:2]
    monkeypatch.setenv("PPO_TRUSTED_PROXIES", "proxy.example.org")
    with pytest.raises(ValidationError):
        ApiSettings()
