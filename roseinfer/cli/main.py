"""The command `roseinfer`, and `python -m roseinfer`: one module per subcommand, and what each of them must give.

Its docstring is the help: the first line for the list of commands, all of it for its own. EXAMPLES: lines to type.
add_arguments(parser). run(arguments): the exit status, None for 0; what it may raise is in roseinfer.cli.command.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from roseinfer.cli.command import STATUSES, Parser, exit_status, run_with
from roseinfer.cli.commands import (
    aot,
    bench,
    chat,
    doctor,
    dry_run,
    generate,
    ladder,
    serve,
    simulate,
    trace,
)
from roseinfer.paths import has_course

MORE = f"`roseinfer COMMAND --help` tells more, with examples\n\n{STATUSES}"
COMMANDS = (
    doctor,
    generate,
    chat,
    ladder,
    bench,
    serve,
    simulate,
    trace,
    dry_run,
    aot,
)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. Raises SystemExit for --help."""

    def run() -> int | None:
        arguments = parser().parse_args(argv)
        return run_with(arguments.run, arguments)

    return exit_status(run, is_process=argv is None)


def parser() -> Parser:
    """Make the parser of all subcommands."""
    p = Parser(prog="roseinfer", description="A course on LLM inference engines, and its engine.", epilog=MORE)
    p.add_argument("--version", action="store_true", help="show the version and leave")
    p.set_defaults(run=lambda arguments: print(version_line()) if arguments.version else p.print_help())
    commands = p.add_subparsers(metavar="COMMAND", title="commands")
    of_course = course_commands()
    if not of_course:
        p.elsewhere = "; what belongs to the course comes with a clone of the repository"
    for module in (*COMMANDS, *of_course):
        about = (module.__doc__ or "").strip()
        examples = "\n".join(["examples:", *(f"  {line}" for line in module.EXAMPLES)])
        name = name_of(module)
        own = commands.add_parser(name, help=about.splitlines()[0], description=about, epilog=examples)
        module.add_arguments(own)
        own.set_defaults(run=module.run)
    return p


def course_commands() -> tuple[ModuleType, ...]:
    """Return the commands that come with a clone: an engine that pip installed alone has none of them."""
    if not has_course() or find_spec("course") is None:
        return ()
    commands: tuple[ModuleType, ...] = importlib.import_module("course.cli").COMMANDS
    return commands


def version_line() -> str:
    from roseinfer.doctor import installed_version

    return f"roseinfer {installed_version('roseinfer') or '(not installed)'}"


def name_of(module: ModuleType) -> str:
    """Name of a command as one types it: dry-run for the module dry_run."""
    return module.__name__.rpartition(".")[2].replace("_", "-")
