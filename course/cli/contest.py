"""The contest: scores an entry of your own against a baseline, for time and for right tokens, and keeps a scoreboard.

`roseinfer contest new FILE` writes a first entry, `run` scores files, `show` shows the scores so far.

An entry runs in a process of its own with limits on time and memory. That is for fairness, and is no sandbox: its code
has all rights of your user. Run only what you trust.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.command import FAILED, Failed, require_named, require_writable
from roseinfer.cli.output import CHARTS, require_suffix, show_line

if TYPE_CHECKING:
    from course.contest import Contest, EntryFile, Score

EXAMPLES = (
    "roseinfer contest new my_entry.py",
    "roseinfer contest run my_entry.py",
    "roseinfer contest run --workload short --board short.json entries/*.py",
    "roseinfer contest show --chart scores.html",
)
NEW = """Write a first entry, with comments: a file to change and to run."""
RUN = """Score entries: each in turn with the baseline, on requests that are new in every run.

A refused entry is one line that says why, and the exit status is 1."""
SHOW = """Show the scoreboard, with the finished engine's recorded score."""
BOARD = Path("contest.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action=lambda args: parser.print_help())
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    for name, about, action in (("new", NEW, new), ("run", RUN, run_entries), ("show", SHOW, show)):
        own = actions.add_parser(name, help=about.splitlines()[0], description=about)
        own.set_defaults(action=action)
        add = own.add_argument
        if name == "new":
            add("file", type=Path, metavar="FILE", help="a file that does not exist yet")
            continue
        add("--board", type=Path, default=BOARD, metavar="FILE", help="the scoreboard")
        if name == "show":
            add("--chart", type=Path, metavar="FILE", help=f"also draw it there ({', '.join(CHARTS)})")
            continue
        add("files", type=Path, nargs="+", metavar="FILE", help="Python files, each with one entry")
        add("--name", help="on the scoreboard; the class's when not given")
        add(
            "--workload",
            default="mixed",
            help="mixed: many lengths, shared beginnings, texts that repeat; short: long prompts, answers of a few "
            "tokens; turned: long answers after short prompts",
        )
        add("--repeats", type=int, default=5, help="runs of each, in turn, after one for warm-up")


def run(args: argparse.Namespace) -> int | None:
    """Run the subcommand. Raises ValueError for a bad argument, and Failed for an entry that is refused."""
    return args.action(args)


def new(args: argparse.Namespace) -> None:
    if args.file.exists():
        raise ValueError(f"FILE {args.file}: exists already; name a file that does not")
    require_writable("FILE", args.file)
    import course.contest.first_entry as first

    args.file.write_text(Path(first.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    print(f"written: {args.file}. Next: roseinfer contest run {args.file}")


def run_entries(args: argparse.Namespace) -> int | None:
    """Score the entries, one after the other; if there are several, an error in one does not stop the others."""
    require_named("--name", args.name)
    if args.name and len(args.files) > 1:
        raise ValueError(f"--name {args.name}: names one entry, and {len(args.files)} files are given")
    from course.contest import Contest, read_board, require_free, workload_of

    workload = workload_of(args.workload)
    files = [_read(path, args) for path in args.files]
    read_board(args.board)
    if args.name:
        require_free(args.board, args.name)
    require_writable("--board", args.board)
    with Contest(workload, args.repeats, say=_say) as contest:
        results = [_scored(contest, file, args) if file else None for file in files]
    return FAILED if None in results else None


def _read(path: Path, args: argparse.Namespace) -> EntryFile | None:
    """Read an entry. If one of several cannot be read, say so on stderr and return None."""
    from course.contest import read_entry

    try:
        return read_entry(path)
    except ValueError as error:
        if len(args.files) == 1:
            raise
        print(f"error: {error}", file=sys.stderr)
        return None


def _scored(contest: Contest, file: EntryFile, args: argparse.Namespace) -> Score | None:
    """Score the entry and write it to the board. If one of several is refused, say so on stderr and return None."""
    from course.contest import Refused, read_board, write_board

    try:
        score = contest.score(file, args.name, args.board)
    except (Refused, ValueError) as error:
        is_refused = isinstance(error, Refused)
        line = f"{file.path} is refused: {error}" if is_refused else str(error)
        if len(args.files) > 1:
            print(f"error: {line}", file=sys.stderr)
            return None
        raise (Failed if is_refused else ValueError)(line) from error
    write_board(args.board, [*read_board(args.board), score])
    print(score.text(_width()), flush=True)
    show_line(score.to_line)
    return score


def show(args: argparse.Namespace) -> None:
    from course.contest import draw_board, read_board, recorded, scoreboard

    scores = read_board(args.board)
    if args.chart:
        require_suffix("--chart", args.chart, CHARTS)
        require_writable("--chart", args.chart)
    if not scores + recorded():
        raise ValueError(f"--board {args.board}: has no score yet; `roseinfer contest run FILE` writes one")
    print(scoreboard(scores, recorded(), _width()))
    if args.chart:
        draw_board([*scores, *recorded()]).save(args.chart)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _width() -> int | None:
    from roseinfer.display.text_table import terminal_width

    return terminal_width()
