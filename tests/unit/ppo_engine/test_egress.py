"""Which reward servers may be called: only public addresses, and hosts that the operator named."""

from __future__ import annotations

import pytest

from ppo_engine.config import HTTPReward
from ppo_engine.egress import Egress, RewardHost, is_public
from ppo_engine.errors import RewardHostForbidden, RewardUnavailable
from ppo_engine.rewards.http import RewardServer

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"]
# From the special-purpose address registries of the IANA, and forms in which IPv6 carries IPv4.
NOT_PUBLIC = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1", "172.31.255.255",
    "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1",
    "168.63.129.16", "100.100.100.200", "192.0.0.192", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1",
    "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_an_ordinary_address_is_public(address: str) -> None:
    assert is_public(address)
    Egress().check("judge.example", 443, [address])


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_special_address_is_not(address: str) -> None:
    assert not is_public(address)


# Spellings of addresses that resolvers understand, and URL parsers often do not.
SPELLINGS = [
    "127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "127.0.0.1.", "0", "localhost.",
    "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[0:0:0:0:0:0:0:1]", "[::]", "[::1%25lo]", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
    "[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]",
]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_an_address_leads_inside(host: str) -> None:
    with pytest.raises((RewardHostForbidden, RewardUnavailable, ValueError)):
        RewardServer(HTTPReward(url=f"http://{host}:9/score"), Egress())


@pytest.mark.parametrize(
    "url",
    [
        "http://user@8.8.8.8/",
        "http://8.8.8.8@127.0.0.1/",
        "http://8.8.8.8 @127.0.0.1/",
        "http://127.0.0.1\\@8.8.8.8/",
        "http://8.8.8.8#@127.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "unix:///run/docker.sock",
        "http://a\r\nHost: b/",
        "http:///score",
        "//127.0.0.1/",
    ],
)
def test_no_url_smuggles_another_host(url: str) -> None:
    with pytest.raises((RewardHostForbidden, RewardUnavailable, ValueError)):
        RewardServer(HTTPReward(url=url), Egress())


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
