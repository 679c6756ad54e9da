"""ServerProcess: a server in its own process on a free port, ended with this one."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from ..contenders import ContenderFailed

LOOK_SECONDS, LOAD_SECONDS, END_SECONDS = 0.05, 300, 20
HOST = "127.0.0.1"


def free_port() -> int:
    """Find a port of this machine at which nothing listens now."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        return int(listening.getsockname()[1])


class ServerProcess:
    """A server in its own process, ready when GET /health answers 200. The end of this process ends it, too.

    name: for errors. command(port): what is run. environment: of the process; this one's when None. Raises
    ContenderFailed, with the last line that the process printed, where it ends before it is ready. Close it, or use it
    as a context manager.
    """

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
    ) -> None:
        port = free_port()
        self.name, self.url = name, f"http://{HOST}:{port}"
        self._printed = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command(port),
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            start_new_session=True,  # Ctrl-C is for the one that watches; it ends this process itself
        )
        atexit.register(self.close)
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the process: ask it first, then kill it. A second call does nothing."""
        atexit.unregister(self.close)
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._printed.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + LOAD_SECONDS
        while not self._is_healthy():
            if not self.is_running:
                raise ContenderFailed(f"{self.name} ended with status {self.process.returncode}{self._last_line()}")
            if time.monotonic() > deadline:
                raise ContenderFailed(f"{self.name} was not ready after {LOAD_SECONDS} s{self._last_line()}")
            time.sleep(LOOK_SECONDS)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=LOAD_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):  # loading (503), or not there yet
            return False

    def _last_line(self) -> str:
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def engine_command(model: str, *flags: str) -> Callable[[int], Sequence[str]]:
    """Make the command of `roseinfer serve` for a ServerProcess. flags: further ones, as typed."""
    return lambda port: [sys.executable, "-m", "roseinfer", "serve", model, "--port", str(port), *flags]


def without_settings_of_ours(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Copy this process's environment without the variables that begin with one of the prefixes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
