"""prove_served, say_server_price: the server beside LLM.generate on the same requests, its texts and its speed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.serving.client import COMPLETE, Outcome, Target, load
from roseinfer.bench.serving.plan import Planned
from roseinfer.bench.verdict import OVERLAP, verdict
from roseinfer.display.table import Table
from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams

from ..measure.progress_bar import progress_bar
from ..views.rows_table import table
from ..views.said import Said, say
from .loads import drawn_plan
from .server import LessonServer, in_a_thread

COUNT, RUNS = 24, 5
NEW_TOKENS = 48


def prove_served(server: LessonServer) -> Table:
    """Send 24 requests at once, streamed and whole, and compare every text with that of the engine offline."""
    plan = drawn_plan(server, COUNT)
    with progress_bar("answers", 3) as done:
        wanted = generated(LLM(server.model, max_num_seqs=server.max_num_seqs), plan)
        done()
        rows = []
        for way, stream in (("streamed", True), ("whole", False)):
            outcomes = in_a_thread(load(Target(server.url, server.model, stream=stream), plan))
            complete = sum(one.how == COMPLETE for one in outcomes)
            equal = sum(one.text == text for one, text in zip(outcomes, wanted, strict=True))
            rows.append({"answers": way, "complete": f"{complete} of {COUNT}"})
            rows[-1]["text of LLM.generate"] = f"{equal} of {COUNT}"
            done()
    return table(rows)


def generated(llm: LLM, plan: Sequence[Planned]) -> list[str]:
    """Generate the texts of a plan's requests without a server."""
    params = [SamplingParams(max_tokens=one.max_tokens, ignore_eos=True) for one in plan]
    outputs = llm.generate([one.prompt for one in plan], params, use_tqdm=False)
    return [one.outputs[0].text for one in outputs]


def say_server_price(server: LessonServer) -> Said:
    """Say what the server costs: the same requests at once through HTTP and through LLM.generate, in alternation."""
    llm = LLM(server.model, max_num_seqs=server.max_num_seqs)
    plan = drawn_plan(server, server.max_num_seqs, output_lens=(NEW_TOKENS, NEW_TOKENS))

    def offline() -> float:
        began = perf_counter()
        generated(llm, plan)
        return NEW_TOKENS * len(plan) / (perf_counter() - began)

    def served(stream: bool) -> float:
        target = Target(server.url, server.model, stream=stream)
        return tokens_per_second(in_a_thread(load(target, plan, clients=len(plan))))

    ways = {"offline": offline, "whole": lambda: served(False), "streamed": lambda: served(True)}
    with progress_bar("runs", 3 * (RUNS + 1)) as done:
        taken = interleaved(ways, RUNS, warmup=1, on_run=lambda name, repeat: done())
    sentences = [f"The same {server.max_num_seqs} requests at once, {NEW_TOKENS} tokens each, medians of {RUNS} runs."]
    for way in ("whole", "streamed"):
        share = median(taken[way]) / median(taken["offline"])
        said = verdict(taken["offline"], taken[way])
        unclear = " (the ranges overlap, so no difference is shown)" if said == OVERLAP else f" ({said})"
        sentences.append(
            f"Answers that come {way}: {median(taken[way]):,.0f} tokens per second, `LLM.generate` "
            f"{median(taken['offline']):,.0f}; that is {share:.0%} of it{unclear}."
        )
    return say("tokens per second with HTTP, and without", *sentences)


def tokens_per_second(outcomes: Sequence[Outcome]) -> float:
    """Compute tokens per second from the start of the load to the last answer's end."""
    return sum(one.num_tokens for one in outcomes) / max(one.ended for one in outcomes)
