"""serve: the requests over any stage or engine, by the clock, and the four numbers that a user feels."""

from __future__ import annotations

from typing import Any

from roseinfer.bench.race import Run
from roseinfer.bench.token_check import Referee, TokensDiffer
from roseinfer.bench.workload import Work
from roseinfer.drive import WallClock, drive_by_clock
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..measure.request_loops import PromptByPrompt
from .kept import Served
from .workload import SIZES, TOKENS_OUT

REPEATS, MOST_SECONDS, WARM_UP = 5, 4.0, 4  # runs; seconds after which no other run begins; requests served before
SPECULATIVE = {"method": "ngram", "num_tokens": 4}


def queue_of(stage: type[Stage], model: Model) -> Any:
    """Make what serves requests: a stage with its own queue, the engine, or a first-come loop over any other stage."""
    if stage is EngineStage:
        return Engine(prepared_copy(model), **SIZES, speculative=SPECULATIVE)
    made = stage(model, **SIZES)
    return made if hasattr(made, "add") else PromptByPrompt(made)


def serve(queue: Any, work: Work) -> tuple[Run, int]:
    """Run all requests to their ends, greedily, each from when it arrives. Return the run, and the most blocks held.

    queue: what has add, step and has_work. A request ends at the end token, or with the output length of its arrival.
    """
    seqs = [Sequence(prompt, SamplingParams(max_tokens=arrival.output_len)) for arrival, prompt in work]
    times = {seq.seq_id: SequenceTimes(arrival.seconds) for seq, (arrival, _) in zip(seqs, work, strict=True)}
    blocks = queue.blocks if isinstance(queue, Engine) else getattr(queue, "stage", queue).tables
    clock, most_held = WallClock(), 0
    coming = zip((arrival.seconds for arrival, _ in work), seqs, strict=True)
    for done in drive_by_clock(queue, coming, clock, lambda seq, when: queue.add(seq)):
        most_held = max(most_held, blocks.num_blocks - blocks.num_free)
        step = StepRecord(finish=clock.now())
        for seq in done:
            own = times[seq.seq_id]
            own.add(step, len(seq.output_ids) - len(own.steps), bool(seq.finish_reason))
    outputs, ended = [seq.output_ids for seq in seqs], [bool(seq.finish_reason) for seq in seqs]
    return Run(len(work), 0.0, list(times.values()), outputs, ended), most_held


def measure(stage: type[Stage], model: Model, work: Work, referee: Referee) -> Served:
    """Serve the requests up to REPEATS times, after a few of them as a warm-up, and keep the median run's numbers.

    Raises TokensDiffer for a run with wrong tokens.
    """
    serve(queue_of(stage, model), work[:WARM_UP])
    runs: list[tuple[Run, int]] = []
    while len(runs) < REPEATS and sum(run.seconds for run, _ in runs) < MOST_SECONDS:
        queue = queue_of(stage, model)  # with an empty prefix cache
        runs.append(serve(queue, work))
        if (made := runs[-1][0].num_tokens) != TOKENS_OUT:
            raise TokensDiffer(f"{stage.name}: {made} tokens in all answers, expected {TOKENS_OUT}")
        referee.check(stage.name, runs[-1][0].outputs)
    seconds = [run.seconds for run, _ in runs]
    run, blocks = sorted(runs, key=lambda one: one[0].seconds)[(len(runs) - 1) // 2]
    first = run.record()["metrics"]["ttft"]
    return Served(
        name=stage.name,
        seconds=run.seconds,
        fastest=min(seconds),
        slowest=max(seconds),
        first_token=first["p50"],
        slowest_first_token=first["max"],
        tokens_per_second=run.num_tokens / run.seconds,
        kv_bytes=blocks * block_bytes(model),
    )


def block_bytes(model: Model) -> int:
    """Return the bytes of a block's keys and values, in all layers."""
    c = model.config
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * SIZES["block_size"] * model.dtype.itemsize
