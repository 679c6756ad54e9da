"""A header Host that is not the server's own: refused where the server is reached from its own machine alone."""

from __future__ import annotations

import pytest

from roseinfer.server.errors import ApiError
from roseinfer.server.hosts import OwnHosts, is_loopback
from roseinfer.server.settings import ServerSettings

OWN = ["localhost", "LOCALHOST", "box.localhost", "127.0.0.1", "127.0.0.2", "[::1]"]
OTHERS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "192.0.2.7",
    "[2001:db8::1]",
    "a",
    "[",
    ":1",
]


def is_refused(asked: str | None, **settings) -> bool:
    headers = {} if asked is None else {b"host": asked.encode()}
    try:
        OwnHosts(ServerSettings(**settings)).check(headers)
    except ApiError as error:
        assert error.status == 403 and error.code == "host_not_allowed"
        return True
    return False


@pytest.mark.parametrize("port", ["", ":8000", ":80"])
@pytest.mark.parametrize("listens_at", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_on_the_loopback_only_its_own_names_pass(listens_at, port):
    assert not [host for host in OWN if is_refused(host + port, host=listens_at)]
    assert not [host for host in OTHERS if not is_refused(host + port, host=listens_at)]


@pytest.mark.parametrize("host", [None, ""])
def test_a_request_without_the_header_comes_from_no_browser(host):
    assert not is_refused(host)


@pytest.mark.parametrize("listens_at", ["0.0.0.0", "::", "192.0.2.1"])
def test_elsewhere_the_server_cannot_know_its_names(listens_at):
    assert not [host for host in OWN + OTHERS if is_refused(host, host=listens_at)]


@pytest.mark.parametrize("listens_at", ["127.0.0.1", "0.0.0.0"])
def test_names_may_be_added_and_hold_everywhere(listens_at):
    names = {"host": listens_at, "allowed_hosts": ["Rose.example"]}
    assert not is_refused("rose.example:443", **names) and not is_refused("localhost", **names)
    assert is_refused("evil.example", **names)


def test_the_name_that_it_listens_at_is_its_own(monkeypatch):
    monkeypatch.setattr("roseinfer.server.hosts.socket.getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    assert is_loopback("my-machine") and not is_refused("my-machine:8000", host="my-machine")
    assert is_refused("other-machine", host="my-machine")


def test_names_are_given_as_a_list():
    with pytest.raises(ValueError, match="allowed_hosts must be a list of names, got the text 'rose.example'"):
        ServerSettings(allowed_hosts="rose.example")
