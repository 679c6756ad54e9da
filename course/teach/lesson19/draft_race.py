"""race_drafts: whole runs of stages with a queue, with drafts and without, on the same requests."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.neighbours import busy_sentence, with_waiting
from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.profiling.clock import seconds_of
from roseinfer.sequence import SamplingParams, Sequence

from ..measure.progress_bar import progress_bar
from ..measure.prove import judge
from ..views.rows_table import table

RUNS, WARM_UP = 5, 2  # the first run captures graphs and computes the prompts, the second one the graphs of short steps
BLOCK_SIZE = 16
ROWS_EACH = 9  # of a step for each sequence: the last token, and up to 8 drafted ones
LIVE = ["tok/s", "speed"]

Prompts = abc.Sequence[abc.Sequence[int]]
Rows = list[dict[str, Any]]


class RequestRun:
    """Runs of the same requests on one stage. num_steps, num_drafted, num_accepted: of the last run."""

    def __init__(self, stage_class: Callable[..., Any], model: Model, prompts: Prompts, params: list[SamplingParams]):
        longest = max(len(prompt) + p.most_tokens for prompt, p in zip(prompts, params, strict=True))
        self.stage = stage_class(
            model,
            num_blocks=len(prompts) * (-(-longest // BLOCK_SIZE) + 1),
            block_size=BLOCK_SIZE,
            max_num_seqs=ROWS_EACH * len(prompts),
        )
        self.prompts, self.params = prompts, params
        self.num_steps = self.num_drafted = self.num_accepted = 0

    def run(self) -> list[list[int]]:
        """Run the requests and return the new tokens of each."""
        seqs = [Sequence(list(prompt), p) for prompt, p in zip(self.prompts, self.params, strict=True)]
        for seq in seqs:
            self.stage.add(seq)
        self.num_steps, (drafted, accepted) = 0, self._drafts_so_far()
        while self.stage.has_work:
            self.stage.step()
            self.num_steps += 1
        now = self._drafts_so_far()
        self.num_drafted, self.num_accepted = now[0] - drafted, now[1] - accepted
        return [seq.output_ids for seq in seqs]

    def _drafts_so_far(self) -> tuple[int, int]:
        """Return the number of tokens that the stage has drafted, and of those that were accepted."""
        return getattr(self.stage, "num_drafted", 0), getattr(self.stage, "num_accepted", 0)


def race_drafts(
    stages: abc.Sequence[type[Any]],
    model: Model,
    batches: Mapping[str, Prompts],
    max_tokens: int = 64,
    temperature: float = 0.0,
) -> Table:
    """Run every batch to its end on each of `stages`, in turn: exact counts of a run, and its speed by the median run.

    stages: with a queue, as stages are from 14 on. batches: prompts by name. temperature: above 0, request i draws with
    seed i. An answer ends at the model's end token, or after max_tokens. Every stage runs each batch before, so graphs
    are captured and prompts are in its prefix cache. tokens: of a run, compared with the first stage's.
    """
    return shown(*measured_rows(stages, model, batches, max_tokens, temperature), LIVE)


def measured_rows(
    stages: abc.Sequence[type[Any]], model: Model, batches: Mapping[str, Prompts], max_tokens: int, temperature: float
) -> tuple[Rows, Rows]:
    """Return the rows of race_drafts, and a sample of each timed run: see neighbours.busy_signs."""
    rows, samples = [], []
    with progress_bar("whole runs", len(batches) * len(stages) * (WARM_UP + RUNS)) as done:
        for name, prompts in batches.items():
            params = [
                SamplingParams(max_tokens, temperature, seed=i if temperature else None) for i in range(len(prompts))
            ]
            runs = {each.name: RequestRun(each, model, prompts, params) for each in stages}
            own_rows, own_samples = _on_one_batch(name, runs, done)
            rows += own_rows
            samples += own_samples
    return rows, samples


def shown(rows: Rows, samples: Rows, live: abc.Sequence[str]) -> Table:
    note = (
        f"whole runs. tok/s: of the median of {RUNS} interleaved ones; speed: against {rows[0]['stage']}; steps: calls "
        "of step(), of which the first one of a stage that overlaps only launches (lesson 16)"
    )
    formats = {"tok/s": "{:,.0f}", "speed": "×{:.2f}"}
    return table(rows, live, note=note, formats=formats, warning=busy_sentence(samples))


def _on_one_batch(name: str, runs: Mapping[str, RequestRun], done: Callable[[], None]) -> tuple[Rows, Rows]:
    outputs = {}
    for stage, run in runs.items():
        for _ in range(WARM_UP):
            outputs[stage] = run.run()
            done()

    def timed(stage: str) -> dict[str, Any]:
        seconds, waited = with_waiting(partial(seconds_of, runs[stage].run))
        done()
        # Without a speed: whole runs of milliseconds lie apart on a quiet machine, too.
        return {"seconds": seconds, "waited_seconds": waited}

    taken = interleaved({stage: partial(timed, stage) for stage in runs}, RUNS)
    seconds = {stage: median(sample["seconds"] for sample in own) for stage, own in taken.items()}
    first = next(iter(runs))
    rows = [
        {
            "batch": name,
            "stage": stage,
            "steps": run.num_steps,
            "drafted": run.num_drafted,
            "accepted": run.num_accepted,
            "tokens": "equal" if outputs[stage] == outputs[first] else "different",
            "tok/s": sum(map(len, outputs[stage])) / seconds[stage],
            "speed": seconds[first] / seconds[stage],
        }
        for stage, run in runs.items()
    ]
    return rows, [sample for own in taken.values() for sample in own]


def prove_drafts(stage_class: type[Any], model: Model, prompts: Prompts, max_tokens: int = 32) -> Table:
    """Compare greedy tokens with both oracles, as teach.prove, but through a stage's queue, so that drafts are made."""
    run = RequestRun(stage_class, model, prompts, [SamplingParams(max_tokens, ignore_eos=True)] * len(prompts))
    verdicts = judge(run.stage, model, [list(prompt) for prompt in prompts], max_tokens, run.run)
    verdicts.title += f"; {run.num_accepted} of {run.num_drafted} drafted tokens accepted"
    return verdicts
