"""ServerProcess: a server in its own process on a free port."""

from __future__ import annotations

import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from ..child_process import ChildProcess
from ..contenders import ContenderFailed

LOOK_SECONDS, LOAD_SECONDS = 0.05, 300
HOST = "127.0.0.1"


def free_port() -> int:
    """Find a port of this machine at which nothing listens now."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        return int(listening.getsockname()[1])


class ServerProcess(ChildProcess):
    """A server in its own process, ready when GET /health answers 200.

    name: for errors. command(port): what is run. environment: of the process; this one's when None. Raises
    ContenderFailed, with the last line that the process printed, where it ends before it is ready. Close it, or use it
    as a context manager.
    """

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
    ) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        super().__init__(name, command(port), environment)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + LOAD_SECONDS
        while not self._is_healthy():
            if not self.is_running:
                raise ContenderFailed(f"{self.name} ended with status {self.process.returncode}{self.last_line()}")
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{self.name} was not ready after {LOAD_SECONDS} s{self.last_line()}")
            time.sleep(LOOK_SECONDS)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=LOAD_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):  # loading (503), or not there yet
            return False


def engine_command(model: str, *flags: str) -> Callable[[int], Sequence[str]]:
    """Make the command of `roseinfer serve` for a ServerProcess. flags: further ones, as typed."""
    return lambda port: [sys.executable, "-m", "roseinfer", "serve", model, "--port", str(port), *flags]
