"""ServerSettings: how a server listens, and its limits. Its fields are flags of `roseinfer serve`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roseinfer.arguments import require_count, require_not_negative, require_positive
from roseinfer.llm.template_text import template_text

MOST_PORT = 65_535
KIB = 1024
HOST_NAME = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+")  # or an address of IPv6, without brackets


def limit(default: Any, about: str) -> Any:
    """Make a flag that is absent unless it is typed, so that a config file's value can stand."""
    told = about if default in (None, False) else f"{about} ({default} when not given)"
    return field(default=default, metadata={"help": told, "options": {"default": None}})


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a server listens, and its limits. Raises ValueError for a wrong value."""

    host: str = limit("127.0.0.1", "address to listen at; 0.0.0.0 for all of this machine")
    port: int = limit(8000, "port to listen at; 0 for any free one")
    api_key: str | None = limit(None, "that clients must send; when not given, the variable ROSEINFER_API_KEY")
    served_model_name: str | None = limit(None, "name that clients ask for; MODEL when not given")
    chat_template: str | None = limit(None, "Jinja in place of the model's own template: a file, or the text itself")
    allowed_hosts: Sequence[str] | None = limit(
        None, "names, such as a proxy's, that requests may have in their header Host beside localhost"
    )
    access_log: bool = limit(False, "write a line for each request to stderr: its time, path, status and id")
    max_queue: int = limit(256, "requests that may wait beside those that run; a further one is answered 429")
    max_body_kib: int = limit(1024, "KiB of a request's body")
    max_header_kib: int = limit(32, "KiB of a request's headers")
    header_seconds: float = limit(10.0, "within which a connection must have sent its headers")
    body_seconds: float = limit(30.0, "within which it must have sent its body")
    send_seconds: float = limit(60.0, "after which a client that takes nothing more of its answer is cut off")
    step_seconds: float = limit(60.0, "after which /health answers 503 while a step of the engine has not ended")
    max_connections: int = limit(4096, "open at a time; a further one is answered 503")
    drain_seconds: float = limit(30.0, "that requests have to end after SIGTERM or Ctrl-C")

    def __post_init__(self) -> None:
        require_count("port", self.port, at_least=0, at_most=MOST_PORT)
        require_count("max_queue", self.max_queue, at_least=0)
        for name in ("max_body_kib", "max_header_kib", "max_connections"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("header_seconds", "body_seconds", "send_seconds", "step_seconds"):
            require_positive(name, getattr(self, name))
        require_not_negative("drain_seconds", self.drain_seconds)
        for name in ("host", "served_model_name"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must name something, got ''")
        if isinstance(self.allowed_hosts, str):
            raise ValueError(f"allowed_hosts must be a list of names, got the text {self.allowed_hosts!r:.100}")
        for name in self.allowed_hosts or ():
            if not isinstance(name, str) or not HOST_NAME.fullmatch(name):
                raise ValueError(f"allowed_hosts must be names without a port, such as rose.example, got {name!r:.100}")
        key = self.api_key
        if key is not None and not (key.strip() and key.isascii() and key.isprintable()):
            raise ValueError("api_key must be of visible ASCII characters, and not empty")

    def with_template_text(self) -> ServerSettings:
        """Return these settings with the template's text instead of its file's name. Raises ValueError.

        A replica may run on a machine without that file.
        """
        return self if self.chat_template is None else replace(self, chat_template=template_text(self.chat_template))
