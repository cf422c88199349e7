"""Where a request comes from when it came through proxies: only those that the operator named are believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> list[Network]:
    """The named addresses and networks; ValueError for what is neither."""
    return [ipaddress.ip_network(text) for text in texts]


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """The address of the client behind the connection's other end.

    Args:
        forwarded: the values of `X-Forwarded-For` in their order. Each proxy adds the address it was called from at the
            end, so they are read from there, and what stands before the first one that is not a trusted proxy was
            written by the client.
    """
    address = peer
    for hop in reversed([part.strip() for value in forwarded for part in value.split(",")]):
        if not _is_trusted(address, trusted):
            break
        try:
            address = str(ipaddress.ip_address(hop.strip("[]")))
        except ValueError:
            break
    return address


def _is_trusted(address: str | None, trusted: Sequence[Network]) -> bool:
    if address is None or not trusted:
        return False
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(plain.version == network.version and plain in network for network in trusted)
