"""chunks: a long prompt comes while others decode. How long do these wait for a token, with chunks and without?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted, require_counts
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.llm.loading import model_to_serve
from roseinfer.models import Model, load_model, model_config
from roseinfer.planning.definitions import METRICS_BY_NAME, definitions
from roseinfer.profiling.progress import OnProgress
from roseinfer.sequence import SamplingParams, Sequence

from ..contenders import require_fit
from ..interleave import race
from ..ladder import mixed_prompts
from ..provenance import describe_host, where
from ..settings import Chunks
from ..token_check import NEAR_TIE, Referee
from ..verdict import spread

SHORT_PROMPT = 8
STEPS_BEFORE = 8  # that the others decode alone, and after it
MS = 1e3


def _ms(seconds: float) -> str:
    return f"{MS * seconds:,.2f}"


@dataclass(frozen=True, kw_only=True)
class ChunksResult(MachineResult):
    """What a long prompt costs the requests that decode, with and without chunks.

    rows: one for each budget, None for no chunks. chunks: the number of steps that the long prompt took, exact. Times
    are seconds, medians of the runs: worst_itl is the longest gap between two tokens of the requests that decode; alone
    is their median gap before the prompt came; ttft is that of the long prompt. vs_whole: the ratio of worst_itl to
    that without chunks. samples: raw.
    """

    SHORT: ClassVar = ("budget", "chunks", "worst_itl", "worst_itl_min", "worst_itl_max", "alone", "ttft", "vs_whole")
    COLUMNS: ClassVar = (
        Column("budget", of=lambda row: "no chunks" if row["budget"] is None else str(row["budget"])),
        Column("steps of the prompt", of="chunks"),
        Column("worst ITL ms", _ms, of="worst_itl"),
        Column("of that without", "{:.0%}".format, of="vs_whole"),
        Column("ITL alone ms", _ms, of="alone"),
        Column("TTFT of the prompt ms", _ms, of="ttft"),
    )

    definitions: dict[str, str]

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} on {where(self)}. A "
            f"prompt of {a['prompt_len']} tokens comes while "
            f"{counted(a['num_decoding'], 'request', 'decodes/decode')}, one token a step each; medians of "
            f"{a['repeats']} interleaved runs. Tokens equal the reference's."
        ]


def chunks(setting: Chunks, on_progress: OnProgress | None = None) -> ChunksResult:
    """Let num_decoding short requests decode, add one of prompt_len tokens, and run on past its first token.

    This is done under each budget and under one that the whole prompt fits, in turn, after a warm-up. Raises ValueError
    for a budget below num_decoding + 1 and for too long a text, and TokensDiffer for wrong tokens.
    """
    spec, budgets = setting.model, setting.budgets
    prompt_len, num_decoding = setting.prompt_len, setting.num_decoding
    require_counts("budgets", budgets, at_least=num_decoding + 1)
    most = prompt_len + num_decoding * SHORT_PROMPT
    num_steps = 2 * STEPS_BEFORE + max(-(-most // (budget - num_decoding)) for budget in budgets)
    longest = max(prompt_len, SHORT_PROMPT) + num_steps
    require_fit(model_config(spec), prompt_len=max(prompt_len, SHORT_PROMPT), steps=num_steps)
    model = model_to_serve(spec, None, setting.device, None)
    prompts = mixed_prompts(model, [SHORT_PROMPT] * num_decoding + [prompt_len], setting.seed)
    referee = Referee(load_model(spec, setting.device), prompts)
    run = partial(_sample, model, prompts, num_steps, longest, referee)
    runs = {_named(budget): partial(run, budget) for budget in (None, *budgets)}
    taken = race(runs, setting.repeats, on_progress)
    whole = median(sample["worst_itl"] for sample in taken[_named(None)])
    rows = []
    for own in taken.values():
        middle = {name: median(sample[name] for sample in own) for name in ("worst_itl", "alone", "ttft")}
        rows.append(
            {
                "budget": own[0]["budget"],
                "chunks": own[0]["chunks"],
                **middle,
                **spread("worst_itl", [sample["worst_itl"] for sample in own]),
                "vs_whole": middle["worst_itl"] / whole,
            }
        )
    return ChunksResult(
        arguments=setting.record(),
        **describe_host(model.device),
        definitions=definitions(),
        rows=rows,
        samples=[sample for own in taken.values() for sample in own],
    )


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
