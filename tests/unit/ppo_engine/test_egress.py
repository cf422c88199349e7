"""Which reward servers may be called: only public addresses, and hosts that the operator named."""

from __future__ import annotations

import pytest

from ppo_engine.egress import Egress, RewardHost, is_public
from ppo_engine.errors import RewardHostForbidden

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"]
# From the special-purpose address registries of the IANA, and forms in which IPv6 carries IPv4.
NOT_PUBLIC = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1",
    "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1",
    "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_ordinary_address_is_public(address: str) -> None:
    assert is_public(address)
    Egress().check("judge.example", 443, [address])


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_special_address_is_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"]])
def test_one_address_that_is_not_public_refuses_the_host(addresses: list[str]) -> None:
    with pytest.raises(RewardHostForbidden, match=r"judge\.example:80 is at (127|10)"):
        Egress().check("judge.example", 80, addresses)


@pytest.mark.parametrize(
    ("allowed", "host", "port", "expected"),
    [
        ("judge", "judge", 80, True),
        ("Judge.", "jUDGE", 8080, True),
        ("judge:8765", "judge", 8765, True),
        ("judge:8765", "judge", 80, False),
        ("judge", "judge.example", 80, False),
        ("localhost", "127.0.0.1", 80, False),
        ("::1", "::1", 80, True),
        ("[::1]:8765", "0:0:0:0:0:0:0:1", 8765, True),
        ("[::1]:8765", "::1", 80, False),
    ],
)
def test_a_host_is_allowed_by_its_name_and_port(allowed: str, host: str, port: int, expected: bool) -> None:
    egress = Egress([RewardHost.parse(allowed)])
    assert egress.names(host, port) is expected
    if expected:
        egress.check(host, port, ["127.0.0.1"])
    else:
        with pytest.raises(RewardHostForbidden):
            egress.check(host, port, ["127.0.0.1"])


@pytest.mark.parametrize("text", ["", "http://judge", "judge:", "judge:0", "judge:65536", "judge:x", "a b", "u@judge"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST or HOST:PORT"):
        RewardHost.parse(text)
