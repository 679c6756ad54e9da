"""Continue a text: the model writes on where the prompt ends.

The text goes to stdout as it is written, and how it ended to stderr. Without a PROMPT it is read from stdin.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from roseinfer.cli.answering import Loading, Writing, llm_of, params_of, show_as_it_grows, status_of
from roseinfer.cli.command import MODEL, Failed
from roseinfer.cli.flags import add_flags
from roseinfer.cli.output import add_output, check_output, written

if TYPE_CHECKING:
    from roseinfer.llm.outputs import RequestOutput

EXAMPLES = (
    'roseinfer generate tiny "Return a new"',
    'roseinfer generate tiny "Return a new" --max-tokens 100 --temperature 0.8 --seed 1',
    "roseinfer generate tiny < prompt.txt --output answer.json",
)
MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a text; stdin when not given")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="new tokens at most")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="the text ends before it; may be given twice")
    add_flags(parser.add_argument, Writing)
    add_flags(parser.add_argument, Loading)
    add_output(parser.add_argument)


def run(args: argparse.Namespace) -> int:
    if args.model is None:
        raise ValueError("missing: MODEL")
    check_output(args)
    prompt = args.prompt if args.prompt is not None else sys.stdin.read()
    llm = llm_of(args)
    params = params_of(args, llm, max_tokens=args.max_tokens, stop=args.stop)
    output = show_as_it_grows(llm, prompt, params)
    [sample] = output.outputs
    print(f"{len(sample.token_ids)} tokens, ended by: {sample.finish_reason}", file=sys.stderr)
    if args.output and (failed := written("--output", args.output, lambda path: path.write_text(whole(output)))):
        raise Failed(failed[0])
    return status_of(output)


def whole(output: RequestOutput) -> str:
    """What came of it as JSON."""
    return json.dumps(asdict(output), ensure_ascii=True, indent=2) + "\n"
