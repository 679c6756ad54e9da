"""ServerSettings: how a server listens, and its limits. Its fields are flags of `roseinfer serve`."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.arguments import require_count, require_positive
from roseinfer.cli.flags import flag

MOST_PORT = 65_535
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Raises ValueError for a wrong value."""

    host: str = flag("127.0.0.1", "address to listen at; 0.0.0.0 for all of this machine")
    port: int = flag(8000, "port to listen at; 0 for any free one")
    api_key: str | None = flag(
        None, "that clients must send; not given, the variable ROSEINFER_API_KEY, and none if that is empty"
    )
    served_model_name: str | None = flag(None, "name that clients ask for; MODEL when not given")
    max_queue: int = flag(256, "requests that may wait beside those that run; a further one is answered 429")
    max_body_kib: int = flag(1024, "KiB of a request's body")
    max_header_kib: int = flag(32, "KiB of a request's headers")
    header_seconds: float = flag(10.0, "within which a connection must have sent its headers")
    body_seconds: float = flag(30.0, "within which it must have sent its body")
    send_seconds: float = flag(60.0, "after which a client that takes nothing more of its answer is cut off")
    max_connections: int = flag(4096, "open at a time; a further one is answered 503")
    drain_seconds: float = flag(30.0, "that requests have to end after SIGTERM or Ctrl-C")

    def __post_init__(self) -> None:
        require_count("port", self.port, at_least=0, at_most=MOST_PORT)
        require_count("max_queue", self.max_queue, at_least=0)
        for name in ("max_body_kib", "max_header_kib", "max_connections"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("header_seconds", "body_seconds", "send_seconds"):
            require_positive(name, getattr(self, name))
        if not 0 <= self.drain_seconds < float("inf"):
            raise ValueError(f"drain_seconds must be a number of at least 0, got {self.drain_seconds!r}")
        for name in ("host", "served_model_name"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must name something, got ''")
        if self.api_key is not None and (not self.api_key.isascii() or not self.api_key.isprintable() or not self.api_key.strip()):
            raise ValueError("api_key must be of visible ASCII characters, and not empty")
