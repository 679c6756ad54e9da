"""What commands share: how arguments are read, how a run is guarded, and what errors and exit statuses mean.

Neither this nor the top of a command's module needs more than the standard library: --help is instant, and the doctor
runs where nothing else does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

from roseinfer.arguments import unknown_name

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130
STATUSES = "exit status: 0; 1 when it failed; 2 for a bad argument; 130 for Ctrl-C"
INSTALL = "`make setup` installs all that the course needs, `pip install '.[course]'` all but what tests it"
MODEL = "tiny, random:gpt2, a local folder in HF format, or a hub id"
DEVICE = "cpu, cuda, ...; cuda where there is one when not given"


class Failed(Exception):
    """Nothing was wrong with the arguments, and yet it could not be done."""


def exit_status(run: Callable[[], int | None]) -> int:
    """Run it: 0, or what it returns. An error that a user can act on becomes one line on stderr; a bug is raised."""
    try:
        status = run() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as interrupt:
        print("interrupted", *interrupt.args, sep=": ", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has gone; without this the flush at exit fails once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        status, line = _explained(error)
        if status is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return status


def _explained(error: Exception) -> tuple[int | None, str]:
    """Its exit status and its line; no status for a bug, which is to be seen whole."""
    if isinstance(error, ValueError | FileNotFoundError):
        return BAD_ARGUMENT, str(error)
    if isinstance(error, Failed | OSError):
        return FAILED, str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "roseinfer").split(".")[0]
        mend = "run from a clone of the repository" if name in ("stages", "tools") else INSTALL
        return (None if name == "roseinfer" else FAILED), f"{name} is not installed: {mend}"
    from roseinfer.bench import ContenderFailed, TokensDiffer  # not before: it imports torch

    return (FAILED if isinstance(error, ContenderFailed | TokensDiffer) else None), str(error)


class Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and leave; knows the flag nearest to an unknown one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Help, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings if flag not in ("-h", "--help")]
            self.error(f"unknown argument {unknown_name(unknown[0].split('=')[0], flags)}")
        return found, unknown


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Keeps paragraphs apart, and lists as they were written; tells no default where there is none."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(part if "\n  " in part else fill(part, width, indent) for part in text.split("\n\n"))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_none = action.default is None or action.default is False
        return action.help if has_none else super()._get_help_string(action)


def require_named(flag: str, value: str | None) -> None:
    """Raises ValueError for a flag that was given with nothing behind it; None: it was not given."""
    if value is not None and not value.strip():
        raise ValueError(f"{flag} {value!r}: must name something, leave it out for the default")


def require_writable(flag: str, path: Path | None) -> None:
    """Before a long run. Raises ValueError unless the path, if there is one, is a file in a folder that exists."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"{flag} {path}: must be a file in a folder that exists")


def device_or_best(device: str | None) -> str:
    """The one that was asked for; else the GPU, where there is one."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def timed_lines() -> Callable[[str], None]:
    """Prints a line on stderr, the seconds so far in front."""
    started = perf_counter()
    return lambda text: print(f"{perf_counter() - started:5.0f} s  {text}", file=sys.stderr, flush=True)
