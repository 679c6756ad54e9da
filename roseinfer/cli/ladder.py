"""python -m roseinfer.cli.ladder: all stages on the same prompts. A table, then one line of JSON as the last line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.arguments import unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from roseinfer.bench import LadderResult
    from roseinfer.bench.interleave import OnProgress, RunProgress
    from roseinfer.stage import Stage

BAD_ARGUMENT, FAILED, INTERRUPTED = 2, 1, 130


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0; 1 when a contender fails or its tokens are wrong; 2 for a bad argument; 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    try:
        # Imported here, so that --help is instant and Ctrl-C while torch loads leaves cleanly too.
        from roseinfer.bench import ContenderFailed, TokensDiffer

        try:
            result = run(args)
        except (ContenderFailed, TokensDiffer) as error:
            return complain(error, FAILED)
        except ValueError as error:
            return complain(error, BAD_ARGUMENT)
        show(result)
        line = result.to_json()
        if args.json:
            try:
                args.json.write_text(line + "\n", encoding="utf-8")
            except OSError as error:
                print(line)  # a long run is not lost for a full disk
                return complain(error, FAILED)
        print(line, flush=True)
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has gone; without this the flush at exit fails once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m roseinfer.cli.ladder",
        description="Race all stages on the same prompts, interleaved, with transformers' generate as a row.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--model", default="tiny", help="tiny, random:gpt2, a local folder in HF format, or a hub id")
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--prompt-len", type=int, default=8, help="tokens of each (random) prompt")
    p.add_argument("--max-new-tokens", type=int, default=32)
    p.add_argument("--repeats", type=int, default=3, help="interleaved runs of each, after one for warm-up")
    p.add_argument("--seed", type=int, default=0, help="of the prompts")
    p.add_argument("--stages", help="such as s01,s03; all whose times say something here when not given")
    p.add_argument("--device", help="cpu, cuda, ...; cuda where there is one when not given")
    p.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line there")
    hf = p.add_mutually_exclusive_group()
    hf.add_argument("--no-hf", action="store_true", help="without transformers' generate")
    hf.add_argument("--hf-static", action="store_true", help="also transformers' generate with a static cache")
    return p


def run(args: argparse.Namespace) -> LadderResult:
    """Raises ValueError for a bad argument, and what bench.ladder raises."""
    import torch

    from roseinfer.bench import ladder
    from roseinfer.models import load_model

    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {args.json}: must be a file in a folder that exists")
    stages = chosen_stages(args.stages)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(args.model, device=device, dtype=getattr(torch, args.dtype))
    left_out = {} if args.stages else untimed(stages, model.device)
    stages = [stage for stage in stages if stage.name not in left_out]
    with progress_bar() as on_progress:
        result = ladder(
            stages, model, batch_size=args.batch_size, prompt_len=args.prompt_len,
            max_new_tokens=args.max_new_tokens, repeats=args.repeats, seed=args.seed, with_hf=not args.no_hf,
            hf_caches=("dynamic", "static") if args.hf_static else ("dynamic",), on_progress=on_progress,
        )  # fmt: skip
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}", file=sys.stderr)
    return replace(result, arguments={"model": args.model, **result.arguments}, not_run=left_out)


def chosen_stages(spec: str | None, flag: str = "--stages") -> list[type[Stage]]:
    """The stages that `spec` names ("s01,s03_select_append"), in its order; all for None.

    Raises ValueError, with the flag that asked for it, for an unknown one.
    """
    # Looked up at run time: stages import the library, so the library must not import them. Only this command,
    # which exists to race what the course has, asks for them by name.
    try:
        stages = importlib.import_module("stages").LADDER
    except ModuleNotFoundError as error:
        raise ValueError(f"the package `stages` is missing ({error}): run from a clone of the repository") from None
    if spec is None:
        return list(stages)
    by_name = {name: stage for stage in stages for name in (stage.name, stage.name.split("_")[0])}
    chosen = [name.strip() for name in spec.split(",")]
    for name in chosen:
        if name not in by_name:
            unknown = unknown_name(name, [stage.name for stage in stages])
            raise ValueError(f"{flag}: unknown stage {unknown}, or the first part (s01)")
    return [by_name[name] for name in chosen]


def untimed(stages: Sequence[type[Stage]], device: torch.device) -> dict[str, str]:
    """The stages whose times on that device would say nothing, by name, with the reason."""
    reasons = {stage.name: stage.why_untimed(device) for stage in stages}
    return {name: reason for name, reason in reasons.items() if reason}


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """A bar on stderr; nothing at all where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring this machine", total=None)

        def on_progress(p: RunProgress) -> None:
            speed = f", {p.tokens / p.seconds:,.0f} tok/s" if p.seconds else ""
            description = f"{p.phase}: {p.name}{speed}"
            bar.update(task, description=description, completed=p.runs_done, total=p.runs_total or None)

        yield on_progress


def show(result: LadderResult) -> None:
    from roseinfer.display.cells import terminal_width

    print(result.text(terminal_width()))


def complain(error: Exception, status: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
