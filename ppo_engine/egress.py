"""Which reward servers and webhooks a worker may call. Torch-free.

A spec names a URL and the worker posts to it from inside the operator's network. So a host is looked up, all its
addresses are checked, and the connection goes to a checked address, not to the name again, which may by then mean
another machine. What is not on the public internet is refused, unless the operator allowed that host by name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ppo_engine.errors import RewardHostForbidden

_HOST = re.compile(r"^(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[^\s/:@\[\]]+))(?::(?P<port>\d{1,5}))?$")
_UNICAST6 = ipaddress.ip_network("2000::/3")
_SPECIAL = [
    ipaddress.ip_network(block)
    for block in (
        # The IANA's special-purpose registries (RFC 6890); Python's own `is_global` differs between versions.
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        "192.88.99.0/24",  # relays of 6to4
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "168.63.129.16/32",  # Azure's own services for its virtual machines, at a public address
        "2001::/23",  # Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
]


@dataclass(frozen=True, slots=True)
class RewardHost:
    """A host that the operator allows whatever its address is; on any port, if none is given."""

    host: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `HOST`, `HOST:PORT` or `[IPV6]:PORT`; ValueError for anything else."""
        bare = text if text.count(":") < 2 or text.startswith("[") else f"[{text}]"
        match = _HOST.match(bare)
        port = None if match is None or match["port"] is None else int(match["port"])
        if match is None or not (port is None or 0 < port < 65536):
            raise ValueError(f"`{text}` is not HOST or HOST:PORT")
        return cls(_plain(match["ipv6"] or match["name"]), port)


@dataclass(frozen=True, slots=True)
class Egress:
    """What the operator allows, and the token for the servers that are allowed by name."""

    allowed: Sequence[RewardHost] = ()
    token: str | None = None

    def names(self, host: str, port: int) -> bool:
        """Whether the operator allowed this host by name."""
        return any(item.host == _plain(host) and item.port in (None, port) for item in self.allowed)

    def refused(self, host: str, port: int, addresses: Sequence[str]) -> str | None:
        """The address for which a host may not be called: one that is not public, unless it is allowed by name."""
        if self.names(host, port):
            return None
        return next((address for address in addresses if not is_public(address)), None)

    def check(self, host: str, port: int, addresses: Sequence[str]) -> None:
        """Refuse a host of which one address is not public, unless it is allowed by name.

        Raises:
            RewardHostForbidden: it may not be called.
        """
        private = self.refused(host, port, addresses)
        if private is not None:
            raise RewardHostForbidden(f"reward server {host}:{port} is at {private}, which is not a public address")


NO_HOST_ALLOWED = Egress()


def is_public(address: str) -> bool:
    """Whether an IP address is an ordinary one of the public internet.

    Loopback, private, shared, link-local, multicast and reserved ranges are not, nor are IPv6 addresses that stand
    for an IPv4 one (mapped, NAT64, 6to4, Teredo).
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.version == 6 and parsed not in _UNICAST6:
        return False
    return not any(parsed in block for block in _SPECIAL if block.version == parsed.version)


def literal_addresses(host: str) -> list[str]:
    """The addresses that a host is without any lookup: those of an IP address in every spelling; none for a name.

    `localhost` and names under it are this machine (RFC 6761), `127.1` and `0x7f000001` are what C makes of them.
    """
    plain = host.strip("[]").partition("%")[0].rstrip(".").lower()
    if plain == "localhost" or plain.endswith(".localhost"):
        return ["127.0.0.1"]
    try:
        found = socket.getaddrinfo(plain, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError, ValueError):
        return []
    return [str(item[4][0]) for item in found]


def _plain(host: str) -> str:
    """One spelling per host."""
    name = host.lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name
