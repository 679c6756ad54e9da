"""chunks: a long prompt comes while others decode. How long do these wait for a token, with chunks and without?"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted, require_count, require_counts
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column, TextTable
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.llm.loading import model_to_serve
from roseinfer.models import Model, load_model, model_config
from roseinfer.planning.definitions import METRICS_BY_NAME, definitions
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.sequence import SamplingParams, Sequence

from ..interleave import interleaved, phase_of
from ..ladder import mixed_prompts
from ..provenance import describe_host, where
from ..token_check import NEAR_TIE, Referee

SHORT_PROMPT = 8
STEPS_BEFORE = 8  # that the others decode alone, and after it
MS = 1e3


@dataclass(frozen=True, kw_only=True)
class ChunksResult(MachineResult):
    """What a long prompt costs the requests that decode, with and without chunks.

    rows: one for each budget, None for no chunks. chunks: the number of steps that the long prompt took, exact. Times
    are seconds, medians of the runs: worst_itl is the longest gap between two tokens of the requests that decode; alone
    is their median gap before the prompt came; ttft is that of the long prompt. vs_whole: the ratio of worst_itl to
    that without chunks. samples: raw.
    """

    SHORT: ClassVar = ("budget", "chunks", "worst_itl", "worst_itl_min", "worst_itl_max", "alone", "ttft", "vs_whole")

    definitions: dict[str, str]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        columns = {
            "budget": Column("budget"),
            "chunks": Column("steps of the prompt"),
            "worst_itl": Column("worst ITL ms", _ms),
            "vs_whole": Column("of that without", "{:.0%}".format),
            "alone": Column("ITL alone ms", _ms),
            "ttft": Column("TTFT of the prompt ms", _ms),
        }
        rows = [row | {"budget": "no chunks" if row["budget"] is None else str(row["budget"])} for row in self.rows]
        table = TextTable.of(list(columns.values()), [[row[name] for name in columns] for row in rows])
        return [table.text(width)]

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} on {where(self)}. A "
            f"prompt of {a['prompt_len']} tokens comes while "
            f"{counted(a['num_decoding'], 'request', 'decodes/decode')}, one token a step each; medians of "
            f"{a['repeats']} interleaved runs. Tokens equal the reference's."
        ]


def chunks(
    spec: str,
    *,
    prompt_len: int = 448,
    num_decoding: int = 8,
    budgets: List[int] = (64,),
    repeats: int = 5,
    seed: int = 0,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
) -> ChunksResult:
    """Let num_decoding short requests decode, add one of prompt_len tokens, and run on past its first token.

    This is done under each budget and under one that the whole prompt fits, in turn, after a warm-up. Raises ValueError
    for a bad argument, such as a budget below num_decoding + 1, and TokensDiffer for wrong tokens.
    """
    for argument, value in (("prompt_len", prompt_len), ("num_decoding", num_decoding), ("repeats", repeats)):
        require_count(argument, value, at_least=1)
    require_count("seed", seed, at_least=0)
    require_counts("budgets", budgets, at_least=num_decoding + 1)
    most = prompt_len + num_decoding * SHORT_PROMPT
    num_steps = 2 * STEPS_BEFORE + max(-(-most // (budget - num_decoding)) for budget in budgets)
    longest = max(prompt_len, SHORT_PROMPT) + num_steps
    if longest > (allowed := model_config(spec).max_model_len):
        raise ValueError(f"prompt_len={prompt_len} and {num_steps} steps are {longest} tokens, allowed: {allowed}")
    model = model_to_serve(spec, None, device, None)
    prompts = mixed_prompts(model, [SHORT_PROMPT] * num_decoding + [prompt_len], seed)
    referee = Referee(load_model(spec, device), prompts)
    run = partial(_sample, model, prompts, num_steps, longest, referee)
    runs = {budget: partial(run, budget) for budget in (None, *budgets)}
    progress = Progress(on_progress, dict.fromkeys(map(_named, runs), 1 + repeats), len(runs) * (1 + repeats))
    taken = interleaved(
        runs,
        repeats,
        warmup=1,
        on_run=lambda budget, repeat: progress.begin(phase_of(repeat, repeats), _named(budget), repeat=repeat),
    )
    whole = median(sample["worst_itl"] for sample in taken[None])
    rows = []
    for limit, own in taken.items():
        middle = {name: median(sample[name] for sample in own) for name in ("worst_itl", "alone", "ttft")}
        worst = [sample["worst_itl"] for sample in own]
        rows.append(
            {
                "budget": limit,
                "chunks": own[0]["chunks"],
                **middle,
                "worst_itl_min": min(worst),
                "worst_itl_max": max(worst),
                "vs_whole": middle["worst_itl"] / whole,
            }
        )
    return ChunksResult(
        arguments={
            "model": spec,
            "prompt_len": prompt_len,
            "num_decoding": num_decoding,
            "budgets": list(budgets),
            "repeats": repeats,
            "seed": seed,
            "device": device,
        },
        **describe_host(model.device),
        definitions=definitions(),
        rows=rows,
        samples=[sample for own in taken.values() for sample in own],
    )


def _ms(seconds: float) -> str:
    return f"{MS * seconds:,.2f}"


def _named(budget: int | None) -> str:
    return "no chunks" if budget is None else f"budget {budget}"


def _sample(
    model: Model, prompts: list[list[int]], num_steps: int, longest: int, referee: Referee, budget: int | None
) -> dict[str, Any]:
    engine = Engine(
        model,
        num_blocks=len(prompts) * -(-longest // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_seqs=len(prompts),
        max_num_batched_tokens=budget,
        async_scheduling=False,  # steps in turn, on a GPU too: the steps of the prompt are counted
    )
    engine.warm_up()
    *short, last = [Sequence(p, SamplingParams(max_tokens=num_steps, ignore_eos=True)) for p in prompts]
    decoding = [engine.add(seq) for seq in short]
    while len(decoding[-1].steps) < STEPS_BEFORE:
        engine.step()
    alone = median(gap for times in decoding for gap in METRICS_BY_NAME["itl"].values(times))
    num_before = engine.metrics.num_steps
    times = engine.add(last)
    while not times.steps:
        engine.step()
    num_chunks = engine.metrics.num_steps - num_before
    list(drive(engine))
    referee.check(f"budget {budget}", [seq.output_ids for seq in (*short, last)], NEAR_TIE)
    return {
        "budget": budget,
        "chunks": num_chunks,
        "alone": alone,
        "ttft": METRICS_BY_NAME["ttft"].values(times)[0],
        "worst_itl": max(gap for own in decoding for gap in _gaps_while(own, times)),
        "itl": [METRICS_BY_NAME["itl"].values(own) for own in decoding],
    }


def _gaps_while(own: SequenceTimes, times: SequenceTimes) -> list[float]:
    """List the gaps between tokens that ended from the long prompt's arrival to its first token."""
    first = times.steps[0].finish
    gaps = zip(METRICS_BY_NAME["itl"].values(own), own.steps[1:], strict=True)
    return [gap for gap, step in gaps if times.arrival <= step.finish <= first]
