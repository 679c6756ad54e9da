"""OwnHosts: the names under which a server that listens on this machine alone may be asked."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address

from .errors import ApiError
from .settings import ServerSettings

LONGEST_NAME = 100  # characters of a wrong one in a message


class OwnHosts:
    """Refuses requests whose header Host names another server.

    A web page may let its own name lead to 127.0.0.1 after it was loaded (DNS rebinding): the browser then takes this
    server for the page's own, and hands the page its answers. The name in Host gives that away. A server that listens
    elsewhere than at the loopback has names that it cannot know, so there the check needs settings.allowed_hosts.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._allowed = {name.lower() for name in settings.allowed_hosts or ()} | {settings.host.lower()}
        self._is_checked = bool(settings.allowed_hosts) or is_loopback(settings.host)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise ApiError for a foreign Host. A request without the header, which a browser never sends, passes."""
        if not self._is_checked or not headers.get(b"host"):
            return
        name = without_port(headers[b"host"].decode("latin-1")).lower()
        if name not in self._allowed and not is_of_this_machine(name):
            raise ApiError(
                f"the header Host names {name[:LONGEST_NAME]!r}, and this server goes by localhost, 127.0.0.1 or [::1] "
                "alone: --allowed-hosts adds a name",
                status=403,
                code="host_not_allowed",
                headers={"Connection": "close"},
            )


def without_port(host: str) -> str:
    """Return "localhost" for "localhost:8000", and "::1" for "[::1]:8000"."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_of_this_machine(name: str) -> bool:
    """Tell whether a name always means this machine: localhost, a name within it, or an address of the loopback."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Tell whether a server that listens at this name or address is reached from this machine alone."""
    return ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback
