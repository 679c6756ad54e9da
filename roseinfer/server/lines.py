"""to_stderr: a server's lines for its operator."""

from __future__ import annotations

import sys
from contextlib import suppress


def to_stderr(line: str) -> None:
    """Write a line, or nothing where its reader has gone: a server that cannot speak must still obey its signals."""
    with suppress(OSError, ValueError):  # a broken pipe, a full disk; a file that is closed
        print(line, file=sys.stderr, flush=True)
