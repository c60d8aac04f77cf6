"""Who may use a server: a token, and the names under which requests may reach it.

A page in a browser can send requests to a server of the same machine. They are recognised by `Origin`, or, if the
page's own name was made to point to this machine, by a `Host` that is not one of its names.
"""

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass, field


class BadRequest(Exception):
    """An invalid request; its arguments are the HTTP status and a line."""


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    token: str = ""  # each request must have it; empty: none is needed
    names: frozenset[str] = field(default_factory=lambda: own_names())  # allowed in Host, in lower case
    where: str = "in ENVS_TOKEN"  # the client has the token, for the message that it lacks it

    def check(self, headers) -> None:
        """Raise BadRequest for a request with these headers that may not use the server."""
        host = headers.get("Host")
        if host is not None and not self._is_ours(host):
            raise BadRequest(403, f"{host[:60]!r} is not a name of this server; the key names= allows more")
        if headers.get("Origin") not in (None, f"http://{host}"):
            raise BadRequest(403, "requests of web pages are refused")
        scheme, _, sent = headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(sent.encode("utf-8", "replace"), self.token.encode())
        if self.token and not (known and scheme.lower() == "bearer"):
            raise BadRequest(401, f"the token is missing or wrong: the client sends the one {self.where}")

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host is an address, which no page can take for its own name, or a name of this machine."""
        name = re.sub(r":\d{0,5}$", "", host, flags=re.ASCII).lower().rstrip(".")
        return is_ip(name.strip("[]")) or name in self.names


def own_names(*more: str) -> frozenset[str]:
    """Return the names of this machine, and `more`."""
    host = socket.gethostname()
    return frozenset(name.lower().rstrip(".") for name in ("localhost", host, host.partition(".")[0], *more) if name)


def is_ip(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(address[0].partition("%")[0]).is_loopback for *_, address in found)
