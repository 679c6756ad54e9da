"""compare_prefills, compare_steps: what the host reads to choose tokens, and what a prefill or a step takes."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from roseinfer.bench.ladder import check_stages, mixed_prompts
from roseinfer.display.table import Table
from roseinfer.generate import decode_step, requests
from roseinfer.models import Model
from roseinfer.profiling import HostReads, count_ops, host_reads
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..measure.median_times import median_ms
from ..views.rows_table import table

SORTS = {torch.sort, torch.argsort, torch.topk, torch.msort, Tensor.sort, Tensor.argsort, Tensor.topk, Tensor.msort}
NOISES = {
    Tensor.exponential_,
    Tensor.uniform_,
    Tensor.log_normal_,
    torch.rand_like,
    torch.multinomial,
    Tensor.multinomial,
}
PROMPT_LEN = 8  # of compare_steps
FORMATS = {"ms": "{:.1f}", "speed": "×{:.2f}", "bytes": "{:,}"}

Contender = tuple[Callable[[], object], dict[str, Any]]  # what is timed, and exact facts of one call


def compare_prefills(
    stages: abc.Sequence[type[Stage]], model: Model, batches: Mapping[str, abc.Sequence[int]], repeats: int = 5
) -> Table:
    """Time first_tokens of each stage on each batch. batches: maps a name to prompt lengths.

    linear calls: products with a weight matrix, each of which reads the matrix once. tokens: whether they equal those
    of the first stage. Raises ValueError unless stages is a list of Stage classes with different names.
    """

    def contender(stage_class: type[Stage], lengths: abc.Sequence[int]) -> Contender:
        stage = stage_class(model, num_blocks=sum(n // 64 + 2 for n in lengths))
        seqs = requests(mixed_prompts(model, lengths), SamplingParams(max_tokens=1))

        def prefill() -> list[int]:
            tokens = stage.first_tokens(seqs)
            for seq in seqs:
                stage.free(seq)
            return tokens

        found: list[HostReads] = []
        linear = count_ops(lambda: found.append(host_reads(prefill)))["aten::linear"]
        return prefill, {"prompts": len(lengths), "linear calls": linear, "reads": found[0].reads}

    return _compare(stages, batches, contender, repeats, "first tokens of all prompts")


def compare_steps(
    stages: abc.Sequence[type[Stage]],
    model: Model,
    batches: Mapping[str, abc.Sequence[SamplingParams]],
    repeats: int = 8,
) -> Table:
    """Time next_tokens of each stage on each batch. batches: maps a name to what each sequence asks for.

    max_tokens is ignored. Drawn rows need a seed for their tokens to be the same.
    reads, bytes: of the host (profiling.host_reads). noise rows, sorted rows: rows of the vocabulary's size that noise
    is drawn for, and that go through a sort.
    Raises ValueError unless stages is a list of Stage classes with different names.
    """

    def contender(stage_class: type[Stage], params: abc.Sequence[SamplingParams]) -> Contender:
        stage = stage_class(model, num_blocks=2 * len(params))
        seqs = ready(stage, model, params)
        rows = RowCounter(model.config.vocab_size)
        found = host_reads(lambda: rows.during(partial(decode_step, stage, seqs)))
        facts = {"reads": found.reads, "bytes": found.nbytes, "noise rows": rows.noise, "sorted rows": rows.sorted}
        return partial(decode_step, stage, seqs), facts

    return _compare(stages, batches, contender, repeats, "next tokens of all sequences")


class RowCounter(TorchFunctionMode):
    """Counts the rows [V] that go through a sort, and those that noise is drawn for."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.sorted = self.noise = 0

    def during(self, step: Callable[[], object]) -> None:
        with self:
            step()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SORTS:
            self.sorted += args[0].numel() // self.vocab_size
        if func in NOISES:
            self.noise += args[0].numel() // self.vocab_size
        return func(*args, **(kwargs or {}))


def ready(stage: Stage, model: Model, params: abc.Sequence[SamplingParams]) -> list[Sequence]:
    """Make a sequence for each of params, prefilled with PROMPT_LEN tokens, with its first token appended."""
    seqs = requests(mixed_prompts(model, [PROMPT_LEN] * len(params)), list(params))
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    return seqs


def _compare(
    stages: abc.Sequence[type[Stage]],
    batches: Mapping[str, Any],
    contender: Callable[[type[Stage], Any], Contender],
    repeats: int,
    what: str,
) -> Table:
    check_stages(stages)
    rows: list[dict[str, Any]] = []
    for name, batch in batches.items():
        contenders = {stage.name: contender(stage, batch) for stage in stages}
        tokens = {stage: call() for stage, (call, _) in contenders.items()}
        ms = median_ms({stage: call for stage, (call, _) in contenders.items()}, repeats)
        for stage, (_, facts) in contenders.items():
            equal = "equal" if tokens[stage] == tokens[stages[0].name] else "differ"
            rows.append({"batch": name, "stage": stage, **facts, "tokens": equal})
            rows[-1] |= {"ms": ms[stage], "speed": ms[stages[0].name] / ms[stage]}
    note = f"ms: median of {repeats} interleaved calls, {what}; speed: against {stages[0].name} on the same batch"
    return table(rows, ["ms", "speed"], note=note, formats={name: FORMATS[name] for name in FORMATS if name in rows[0]})
