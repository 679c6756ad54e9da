"""Continue a text: the model writes on where the prompt ends.

The text goes to stdout as it is written, at a terminal after the prompt; how fast it was and how it ended go to stderr.
Without a PROMPT it is read from stdin.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from roseinfer.arguments import counted
from roseinfer.cli.answering import ModelFlags, Writing, llm_and_params, read_tokenizer, show_as_it_grows, status_of
from roseinfer.cli.command import Failed
from roseinfer.cli.flags import add_flags
from roseinfer.cli.output import add_output, check_output, written
from roseinfer.settings import MODEL

if TYPE_CHECKING:
    from roseinfer.llm.outputs import RequestOutput

EXAMPLES = (
    'roseinfer generate smollm2 "The three primary colours are"',
    'roseinfer generate tiny "Return a new" --max-tokens 100 --temperature 0.8 --seed 1',
    "roseinfer generate tiny < prompt.txt --output answer.json",
)
MAX_TOKENS = 256
MODEL_FIRST = "MODEL comes before PROMPT, such as `roseinfer generate smollm2 PROMPT`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a text; stdin when not given")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="new tokens at most")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="the text ends before it; may be given twice")
    add_flags(parser.add_argument, Writing)
    add_flags(parser.add_argument, ModelFlags)
    add_output(parser.add_argument)


def run(args: argparse.Namespace) -> int:
    if args.model is None:
        raise ValueError("missing: MODEL")
    check_output(args)
    tokenizer = read_tokenizer(args.model, MODEL_FIRST)
    prompt = args.prompt if args.prompt is not None else typed_prompt()
    llm, params = llm_and_params(args, tokenizer, max_tokens=args.max_tokens, stop=args.stop)
    output = show_as_it_grows(llm, prompt, params)
    print(how_it_went(output), file=sys.stderr)
    if args.output and (failed := written("--output", args.output, lambda path: path.write_text(whole(output)))):
        raise Failed(failed[0])
    return status_of(output)


def typed_prompt() -> str:
    """Read the prompt from stdin. At a terminal, which would only wait, it says so."""
    if sys.stdin.isatty():
        print("(type the prompt; Ctrl-D on an empty line ends it)", file=sys.stderr)
    return sys.stdin.read()


def how_it_went(output: RequestOutput) -> str:
    """Say how it went: "9 tokens in 0.12 s (75 tok/s), ended by: length"."""
    [sample], times = output.outputs, output.metrics
    assert times and times.finished_time, "it has ended"
    num_tokens, seconds = len(sample.token_ids), times.finished_time - times.arrival_time
    speed = f"{num_tokens / seconds:,.0f} tok/s"
    return f"{counted(num_tokens, 'token')} in {seconds:.2f} s ({speed}), ended by: {sample.finish_reason}"


def whole(output: RequestOutput) -> str:
    """Return the whole output as JSON."""
    return json.dumps(asdict(output), ensure_ascii=True, indent=2) + "\n"
