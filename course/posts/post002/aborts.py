"""Post 002: how requests end on the real engine, when an abort matches no request, and when it keeps blocks.

The server wants a number of tokens of each request, sees in a step's tokens which requests have them, and aborts those.
The engine by itself would end a request only one token later: as in the post, when the next step is past the limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.llm.llm import LLM
from roseinfer.models import Model
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.sequence import SamplingParams, Sequence

from ..planned import engine_of
from ..report.content import Exact, Ruled, judged
from ..report.template import Values
from .steps import prompts_of

SEED, LONGEST = 0, 64
Abort = Callable[[Engine, "set[int]"], None]


def abort_the_set(engine: Engine, seq_ids: set[int]) -> None:
    """Abort as the bug does: it compares each id with the whole set, and no id equals a set."""
    for seq in list(engine.scheduler.running):
        if seq.seq_id == seq_ids:
            engine.abort(seq)


def abort_each(engine: Engine, seq_ids: set[int]) -> None:
    for seq in list(engine.scheduler.running):
        if seq.seq_id in seq_ids:
            engine.abort(seq)


def stop_each(engine: Engine, seq_ids: set[int]) -> None:
    """Do half of an abort: the requests leave the queue, but keep their blocks."""
    for seq in list(engine.scheduler.running):
        if seq.seq_id in seq_ids:
            engine.scheduler.running.remove(seq)
            seq.finish_reason = "abort"


ABORTS: dict[str, Abort] = {
    "abort_request(ids), the bug": abort_the_set,
    "abort_request(id) for each id": abort_each,
    "the same, and no block is given back": stop_each,
}


def run_out(engine: Engine, prompts: list[list[int]], wanted: list[int], abort: Abort) -> list[int]:
    """Serve requests of so many tokens until none runs. Returns the number of tokens that each one got."""
    seqs = [
        Sequence(prompt, SamplingParams(max_tokens=n + 1, ignore_eos=True))
        for prompt, n in zip(prompts, wanted, strict=True)
    ]
    wanted_by = {seq.seq_id: n for seq, n in zip(seqs, wanted, strict=True)}
    for done in drive(engine, seqs):
        abort(engine, {seq.seq_id for seq in done if len(seq.output_ids) == wanted_by[seq.seq_id]})
    return [len(seq.output_ids) for seq in seqs]


def abort_section(config: PlannedEngine, model: Model) -> Values:
    draw = random.Random(SEED).random
    wanted = [1 + int(LONGEST * draw()) for _ in range(config.max_num_seqs)]
    prompts = prompts_of(config, model)
    rows: list[list[Exact]] = []
    extra, held = {}, {}
    for name, abort in ABORTS.items():
        engine = engine_of(config, model)
        made = run_out(engine, prompts, wanted, abort)
        extra[name] = _common({got - asked for got, asked in zip(made, wanted, strict=True)})
        held[name] = engine.blocks.num_blocks - engine.blocks.num_free
        rows.append([name, engine.metrics.num_steps, sum(made), sum(made) - sum(wanted), held[name]])
    bug, fixed, half = ABORTS
    size = config.block_size
    never_back = sum(-(-(len(p) + n - 1) // size) for p, n in zip(prompts, wanted, strict=True))
    return {
        "num_requests": len(wanted),
        "wanted": sum(wanted),
        "num_blocks": config.num_blocks,
        "refusal": refusal(model),
        "rows": rows,
        "facts": judged(
            "002",
            {
                "steps a request runs too long, with the bug": extra[bug],
                "steps a request runs too long, fixed": extra[fixed],
                "blocks that are never freed, fixed": held[fixed],
                "blocks that are never freed, if a request is only marked": Ruled(held[half], never_back),
            },
        ),
    }


def refusal(model: Model) -> str:
    """Return what LLM.abort answers to a set."""
    llm = LLM(model, num_kvcache_blocks=1, max_num_seqs=1)
    try:
        llm.abort({"0"})  # type: ignore[arg-type]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it does not"


def _common(values: set[int]) -> Exact:
    """Return the value that all requests have; where they differ, all values in words."""
    return next(iter(values)) if len(values) == 1 else " or ".join(map(str, sorted(values)))
