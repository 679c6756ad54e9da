"""prove: a stage's tokens against both oracles, on a mixed-length batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from roseinfer.bench.ladder import mixed_prompts
from roseinfer.bench.workload import Work
from roseinfer.display.table import Table
from roseinfer.generate import generate
from roseinfer.models import Model
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..views.rows_table import table
from .progress_bar import progress_bar

LENGTHS = (3, 64, 1, 17, 65, 30)


def prove(
    stage_class: type[Stage], model: Model, prompt_lens: tuple[int, ...] = LENGTHS, max_tokens: int = 12
) -> Table:
    """Compare a stage's greedy tokens with the cache-free reference and transformers, one row per sequence.

    Args:
        stage_class: the stage.
        model: from load_model.
        prompt_lens: tokens of each prompt of the batch.
        max_tokens: new tokens of each sequence.

    max_num_seqs is half the batch, so sequences join and leave while others run. A row that differs says at which
    token. Prompts are seeded random ids; transformers runs each alone, so that no padding is involved.
    """
    prompts = mixed_prompts(model, prompt_lens)
    stage = stage_class(model, num_blocks=8 * len(prompts), max_num_seqs=max(1, len(prompts) // 2))

    def run() -> list[list[int]]:
        seqs = generate(stage, prompts, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        return [seq.output_ids for seq in seqs]

    return judge(stage, model, prompts, max_tokens, run)


def judge(
    stage: Any, model: Model, prompts: list[list[int]], max_tokens: int, run: Callable[[], list[list[int]]]
) -> Table:
    """Judge the tokens that `run` makes with a stage: a row for each prompt, with both oracles."""
    with progress_bar(f"{stage.name}, the reference and transformers", total=3) as done:
        outputs = run()
        done()
        theirs = hf_generate(model, prompts, max_tokens)
        done()
        reference = reference_generate(model, prompts, max_tokens, drafts=theirs)
    rows = [
        {
            "prompt tokens": len(prompt),
            "new tokens": len(output),
            "reference": _verdict(output, expected),
            "transformers": _verdict(output, hf),
        }
        for prompt, output, expected, hf in zip(prompts, outputs, reference, theirs, strict=True)
    ]
    free = f"{stage.num_free_blocks} of {stage.tables.num_blocks} blocks free at the end"
    title = f"{stage.name}: tokens against both oracles; {free}"
    return table(rows, title=title)


class Oracles:
    """Greedy tokens that each request of a `work` gets alone: from the cache-free reference, and from transformers."""

    def __init__(self, model: Model, work: Work) -> None:
        self.tokens: dict[str, list[list[int]]] = {"reference": [], "transformers": []}
        with progress_bar("the reference and transformers", total=len(work)) as done:
            for arrival, prompt in work:
                theirs = hf_generate(model, [prompt], arrival.output_len)
                self.tokens["transformers"] += theirs
                self.tokens["reference"] += reference_generate(model, [prompt], arrival.output_len, drafts=theirs)
                done()

    def verdicts(self, outputs: list[list[int]]) -> dict[str, str]:
        """Return for each oracle "equal", or the first request that differs. outputs: in the order of the work.

        Raises ValueError for another number of them.
        """
        return {name: self._verdict(outputs, tokens) for name, tokens in self.tokens.items()}

    def _verdict(self, outputs: list[list[int]], tokens: list[list[int]]) -> str:
        if len(outputs) != len(tokens):
            raise ValueError(f"outputs must be {len(tokens)}, one for each request, got {len(outputs)}")
        pairs = enumerate(zip(outputs, tokens, strict=True))
        return next((f"request {i} {_verdict(got, want)}" for i, (got, want) in pairs if got != want), "equal")


def _verdict(got: list[int], want: list[int]) -> str:
    if got == want:
        return "equal"
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, want, strict=False))
    return f"differs from token {len(list(same))}"
