"""Parts that all commands share: the parser, the guard around a run, errors and exit statuses.

Neither this nor the top of a command's module needs more than the standard library: --help is instant, and the doctor
runs where nothing else does.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn

from roseinfer.arguments import unknown_name
from roseinfer.engine.calls import handled_by
from roseinfer.hardware import best_device

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130
STATUSES = "exit status: 0; 1 when it failed; 2 for a bad argument; 130 for Ctrl-C"
INSTALL = (
    "`make setup` installs all of it, `pip install '.[course]'` what lessons need (lesson 20 also needs `[serve]`), "
    "`pip install '.[serve]'` a server, `pip install '.[scale]'` its replicas"
)
# What the library calls what a flag of another name gives.
LIBRARY_NAMES = {
    "num_requests": "requests",
    "num_decoding": "decoding",
    "precisions": "dtype",
    "dtypes": "dtype",
    "models": "model",
    "prompt_lens": "prompt_len",
    "output_lens": "output_len",
    "rates": "rate",
    "loads": "load",
    "gpu": "floor",
    "max_tokens": "max_new_tokens",
    "path": "file",
}
POSITIONAL = {"file": "FILE", "notebooks": "NOTEBOOK", "post": "POST", "prompt": "PROMPT"}


class Failed(Exception):
    """Raised where the arguments were right, and the command failed all the same."""


def exit_status(run: Callable[[], int | None], is_process: bool = False) -> int:
    """Run a command and return its exit status: 0, or what it returns. A user's error becomes one line on stderr.

    A bug is raised. is_process: the command is all that this process does, which ends at once after it: Python would
    first take apart all that PyTorch holds, for half a second or more. Ctrl-C does not even wait for what a library
    registered for the end. SIGTERM ends it as Ctrl-C does, and so everything that it has started.
    """
    if is_process:
        signal.signal(signal.SIGTERM, _as_interrupt)
    status = _guarded(run)
    if is_process:
        if status != INTERRUPTED:
            atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # one that was closed is None
            with suppress(OSError):  # which _guarded has told
                stream.flush()
        os._exit(status)
    return status


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # the shell that started this in the background had Ctrl-C ignored
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def run_with(run: Callable[[Namespace], int | None], args: Namespace) -> int | None:
    """Run a command. Its errors name the flags that a user typed instead of the library's arguments."""
    try:
        return run(args)
    except OSError as error:
        if flag := flag_of_file(error, args):
            raise ValueError(f"{flag} {error.filename}: {no_file(error)}") from error
        if isinstance(error, FileNotFoundError) and error.errno is None:  # raised here, with a message of its own
            raise FileNotFoundError(in_flags(str(error), args)) from error
        raise
    except (ValueError, Failed) as error:
        kind = Failed if isinstance(error, Failed) else ValueError
        raise kind(in_flags(str(error), args)) from error


def flag_of_file(error: OSError, args: Namespace) -> str | None:
    """Find the flag that names the file which could not be read, if one does."""
    names = [name for name, value in vars(args).items() if isinstance(value, Path) and str(value) == error.filename]
    return flag_of(names[0]) if names else None


def flag_of(name: str) -> str:
    return POSITIONAL.get(name, f"--{name.replace('_', '-')}")


def in_flags(message: str, args: Namespace) -> str:
    """Rewrite a message: each argument of the library appears as the flag that gives it."""
    flags = {theirs: flag_of(own) for theirs, own in LIBRARY_NAMES.items() if own in args}
    flags |= {name: flag_of(name) for name in vars(args) if name not in POSITIONAL}

    def as_flag(found: re.Match[str]) -> str:
        name, after = found["name"], found["after"]
        if not after and "_" not in name:  # such as "model", which is also a word
            return name
        return flags[name] + (" " if after == "=" else after)

    allowed_after = ", allowed: "  # a limit of the model, or the fields of a file, is no flag's
    said, *limits = message.split(allowed_after)
    names = "|".join(map(re.escape, flags))
    # No part of a path, no key of a file: these stand in quotes, or after the name of a JSON file.
    named = rf"(?<![\w./'-])(?<!\.json: )(?P<name>{names})(?P<after>=| must |: unknown |\b(?!\.\w|[/-]))"
    return allowed_after.join([re.sub(named, as_flag, said), *limits])


def _guarded(run: Callable[[], int | None]) -> int:
    with _noted_interrupts() as interrupts:
        try:
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # what an ASCII terminal cannot show is no reason to fail
            status = run() or 0
            if interrupts:  # and other code swallowed it
                raise KeyboardInterrupt
            if sys.stdout is not None:  # as it is where it was closed
                sys.stdout.flush()
            return status
        except BrokenPipeError:  # the reader, `head` say, has gone; without this the flush at exit fails once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except KeyboardInterrupt as interrupt:
            print("interrupted", *interrupt.args, sep=": ", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            if interrupts:
                print("interrupted", file=sys.stderr)
                return INTERRUPTED
            failure, line = _explained(error)
            if failure is None:
                raise
            from roseinfer.display.text_table import printable

            print(f"error: {printable(line)}", file=sys.stderr)
            return failure


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C appends to before it is raised: an import that it breaks off may raise anything."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if before:
            before(number, frame)

    with handled_by(note) as before:
        yield seen


def _explained(error: Exception) -> tuple[int | None, str]:
    """Return the exit status and the line of an error; no status for a bug, which keeps its traceback."""
    if isinstance(error, ValueError | FileNotFoundError):
        return BAD_ARGUMENT, str(error)
    if isinstance(error, Failed | OSError):
        return FAILED, str(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "roseinfer").split(".")[0]
        fix = "run from a clone of the repository" if name == "stages" else INSTALL
        return (None if name == "roseinfer" else FAILED), f"{name} is not installed: {fix}"
    from torch import OutOfMemoryError  # not before: it takes a second

    from roseinfer.bench.contenders import ContenderFailed
    from roseinfer.bench.token_check import TokensDiffer
    from roseinfer.kernels.triton_mode import TritonUnavailable
    from roseinfer.parallel.process import ProcessEnded

    known = ContenderFailed, TokensDiffer, ProcessEnded, TritonUnavailable, OutOfMemoryError
    return (FAILED if isinstance(error, known) else None), str(error)


class Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and leave; knows the flag nearest to an unknown one.

    elsewhere: where values are that are no choice here, for the message of an unknown one.
    """

    elsewhere = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=Help, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise the error in the style of every other error: the argument's name first, without the word "argument"."""
        raise ValueError(message.removeprefix("argument ").replace("the following arguments are required", "missing"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"unknown value {unknown_name(value, action.choices)}{self.elsewhere}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = "an integer" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"must be {kind}, got {arg_string!r}") from None

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
    """Raise ValueError for a flag that was given without a value; None means that it was not given."""
    if value is not None and not value.strip():
        raise ValueError(f"{flag} {value!r}: must name something, leave it out for the default")


def require_writable(flag: str, path: Path | None) -> None:
    """Open the file, if there is one to write, before a long run. Raises ValueError when that fails."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        reason = "a file in a folder that exists, and can be written"
        raise ValueError(f"{flag} {path}: must be {reason} ({error.strerror})") from error


def require_folder(flag: str, folder: Path) -> None:
    """Make the folder, and a file in it, before a long run. Raises ValueError when that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{flag} {folder}: must be a folder that can be written to ({error.strerror})") from error


def no_file(error: OSError) -> str:
    """Say in words why a file cannot be read."""
    return "there is no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def device_or_best(device: str | None) -> str:
    """Return the device that was asked for; without one, the GPU where there is one."""
    return best_device() if device is None else device


def timed_lines() -> Callable[[str], None]:
    """Make a function that prints a line on stderr, with the seconds so far in front."""
    started = perf_counter()
    return lambda text: print(f"{perf_counter() - started:5.0f} s  {text}", file=sys.stderr, flush=True)
