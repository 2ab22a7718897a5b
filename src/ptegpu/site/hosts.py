"""The host names that a server accepts.

A page of another site can resolve its own name to 127.0.0.1 (DNS rebinding) and then send requests to a server there as
if it were its own. The Host header still has that page's name, so a server that checks it refuses such requests.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

ANY = "*"


class Hosts:
    """The set of loopback names, `names`, and, if one of these is an address that others can reach, all addresses.

    An address in a Host header is never a rebound name. The name * allows every host.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_bare(name) for name in names} | {"localhost"}
        addresses = [a for name in self._names if (a := _address(name)) is not None]
        self._addresses = any(not a.is_loopback for a in addresses)

    def accepts(self, header: str | None) -> bool:
        """Return whether a request with this Host header is meant for this server.

        Requests without the header are accepted, as HTTP/1.0 allows: every browser sends one.
        """
        if header is None or ANY in self._names:
            return True
        name = _bare(header)
        address = _address(name)
        return name in self._names or (address is not None and (self._addresses or address.is_loopback))


def _bare(host: str) -> str:
    """Strip the port, brackets and final dot: `[::1]:8000` becomes `::1`."""
    text = host.strip().lower()
    if _address(text) is not None:
        return text
    return re.sub(r":\d*$", "", text).removeprefix("[").removesuffix("]").removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
