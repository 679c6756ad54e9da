"""compare_prefills, compare_steps: what the host reads to choose tokens, and what a prefill or a step takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from functools import partial
from statistics import median
from typing import Any

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import check_stages, mixed_prompts
from roseinfer.display.table import Table
from roseinfer.generate import decode_step, requests
from roseinfer.models import Model
from roseinfer.profiling import count_ops, host_reads
from roseinfer.profiling.clock import seconds_of
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

PROMPT_LEN = 8  # of compare_steps
FORMATS = {"ms": "{:.1f}", "speed": "×{:.2f}", "bytes read": "{:,}"}

Contender = tuple[Callable[[], object], dict[str, Any]]  # what is timed, and exact facts of one call


def compare_prefills(
    stages: List[type[Stage]], model: Model, batches: Mapping[str, List[int]], repeats: int = 5
) -> Table:
    """first_tokens of each stage on each batch. batches: a name -> prompt lengths.

    linear calls: products with a weight matrix, each of which reads the matrix once. tokens: against the first stage's.
    Raises ValueError for what is no list of Stage classes with names of their own.
    """

    def contender(stage_class: type[Stage], lengths: List[int]) -> Contender:
        stage = stage_class(model, num_blocks=sum(n // 64 + 2 for n in lengths))
        seqs = requests(mixed_prompts(model, lengths), SamplingParams(max_tokens=1))

        def prefill() -> list[int]:
            tokens = stage.first_tokens(seqs)
            for seq in seqs:
                stage.free(seq)
            return tokens

        linear = count_ops(prefill)["aten::linear"]
        return prefill, {"prompts": len(lengths), "linear calls": linear, "reads": host_reads(prefill).reads}

    return _compare(stages, batches, contender, repeats, "first tokens of all prompts")


def compare_steps(
    stages: List[type[Stage]], model: Model, batches: Mapping[str, List[SamplingParams]], repeats: int = 8
) -> Table:
    """next_tokens of each stage on each batch. batches: a name -> what each sequence asks for; their max_tokens is not
    looked at. Drawn rows need a seed for their tokens to be the same.

    Raises ValueError for what is no list of Stage classes with names of their own.
    """

    def contender(stage_class: type[Stage], params: List[SamplingParams]) -> Contender:
        stage = stage_class(model, num_blocks=2 * len(params))
        seqs = ready(stage, model, params)
        reads = host_reads(partial(decode_step, stage, seqs))
        drawn = sum(p.temperature > 0 for p in params)
        facts = {"rows": len(params), "drawn": drawn, "reads": reads.reads, "bytes read": reads.nbytes}
        return partial(decode_step, stage, seqs), facts

    return _compare(stages, batches, contender, repeats, "next tokens of all sequences")


def ready(stage: Stage, model: Model, params: List[SamplingParams]) -> list[Sequence]:
    """A sequence for each of params, prefilled with PROMPT_LEN tokens, its first token appended."""
    seqs = requests(mixed_prompts(model, [PROMPT_LEN] * len(params)), list(params))
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    return seqs


def _compare(
    stages: List[type[Stage]],
    batches: Mapping[str, Any],
    contender: Callable[[type[Stage], Any], Contender],
    repeats: int,
    what: str,
) -> Table:
    import pandas as pd

    check_stages(stages)
    rows: list[dict[str, Any]] = []
    for name, batch in batches.items():
        contenders = {stage.name: contender(stage, batch) for stage in stages}
        first_call = {stage: call() for stage, (call, _) in contenders.items()}  # unmeasured, and the tokens
        seconds = interleaved({s: partial(seconds_of, call) for s, (call, _) in contenders.items()}, repeats)
        medians = {stage: median(samples) for stage, samples in seconds.items()}
        for stage, (_, facts) in contenders.items():
            equal = "equal" if first_call[stage] == first_call[stages[0].name] else "differ"
            rows.append({"batch": name, "stage": stage, **facts, "tokens": equal})
            rows[-1] |= {"ms": 1e3 * medians[stage], "speed": medians[stages[0].name] / medians[stage]}
    frame = pd.DataFrame(rows)
    return Table(
        frame,
        exact=[column for column in frame.columns if column not in ("ms", "speed")],
        live=["ms", "speed"],
        note=f"ms: median of {repeats} interleaved calls, {what}; speed: against {stages[0].name} on the same batch",
        formats={name: form for name, form in FORMATS.items() if name in frame.columns},
    )
