"""ChildProcess: another program in a process of its own, which ends with this one."""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

Child = TypeVar("Child", bound="ChildProcess")
END_SECONDS = 20


class ChildProcess:
    """Another program. A context manager; the end of this process ends it, too.

    Args:
        name: for errors.
        command: what is run.
        environment: of the process; this one's when None.
        is_asked: whether stdin and stdout are pipes. What it prints beside them is kept for errors.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, is_asked: bool = False
    ) -> None:
        self.name = name
        self._printed = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if is_asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_asked else self._printed,
            stderr=self._printed,
            text=True,
            env=None if environment is None else dict(environment),
            start_new_session=True,  # Ctrl-C is for the one that watches; it ends this process itself
        )
        atexit.register(self.close)
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Wait until the process can be asked. Raises ContenderFailed where it cannot be."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the process: ask it first, then kill it. A second call does nothing."""
        atexit.unregister(self.close)
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(OSError):  # what was written may have no reader any more
                pipe.close()
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._printed.close()

    def __enter__(self: Child) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def last_line(self) -> str:
        """Return the last line that the process printed, with a colon before it; nothing where it printed none."""
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def without_settings_of_ours(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Copy this process's environment without the variables that begin with one of the prefixes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
