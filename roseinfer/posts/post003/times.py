"""Post 003: the times of a request, taken from real timestamps, and the sign of each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from statistics import mean

from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.config import EngineConfig
from roseinfer.sequence import SamplingParams, Sequence

from ..data import post_table
from ..report.content import Exact, Fact, Grid, Section, Time, judge
from ..report.setting import Setting
from .measure import RequestTimes, build_stage, record_times

STAGE = "s04"
PLACES, LATECOMERS = 4, 2
PROMPT_LEN, TOKENS = 8, 6
FIELD_NAMES = {
    "waiting_time": "queue time",
    "scheduling2inference": "the host's part of a step, before the model runs",
    "inference_time": "the model's part of a step",
    "latency": "time of one token; with one batch in flight the inter-token latency (ITL), whose mean is the TPOT",
}


def engine(setting: Setting) -> EngineConfig:
    return setting.engine(setting.model or "tiny", PLACES, PROMPT_LEN + TOKENS, dtype="float32")


def section(setting: Setting) -> Section:
    requests = run(setting)
    tokens = [request.timestamps(i) for request in requests for i in range(len(request.steps))]
    first_tokens = [request.timestamps(0) for request in requests]
    facts: list[Fact] = []
    times: list[Time] = []
    definitions: list[list[Exact]] = []
    signs: list[list[Exact]] = []
    for row in post_table("003", "times").itertuples():
        queued = row.minuend == "arrival_ts"  # once a request; the others once a token
        taken = first_tokens if queued else tokens
        printed, turned = f"{row.minuend} - {row.subtrahend}", f"{row.subtrahend} - {row.minuend}"
        here = never_negative(row.minuend, row.subtrahend, taken)
        rule, why = (turned, "nothing happens before the arrival") if queued else (printed, "as printed")
        facts.append(judge(row.name, printed, here, rule=rule, why=why))
        definitions.append([row.name, row.meaning, FIELD_NAMES[row.name]])
        signs.append([row.name, len(taken), *signs_of(row.minuend, row.subtrahend, taken)])
        seconds = mean(abs(stamps[row.minuend] - stamps[row.subtrahend]) for stamps in taken)  # whatever its order
        times.append(Time(f"{row.name}, mean", "ms", None, 1e3 * seconds))
    ttft = mean(request.first_token for request in requests)
    times.append(Time("TTFT, mean: queue time and the first step", "ms", None, 1e3 * ttft))
    waited = sum(request.steps[0]["scheduled_ts"] > first_finish(requests) for request in requests)
    return Section(
        "The times of a request",
        [
            "The post takes six timestamps of a request and four differences of them. It writes waiting_time as "
            "arrival_ts - first_scheduled_ts, which is below zero for every request; the other way round it is the "
            "queue time that is meant.",
            f"Checked with real timestamps: {len(requests)} requests arrive at once at a stage with {PLACES} places. "
            f"{waited} of them wait until another has finished; the others wait for the prefills before theirs.",
            "latency starts when a request is scheduled. It leaves the queue out, and is of one token, not of the "
            "whole answer. When figures are compared the definition belongs beside them.",
        ],
        facts=facts,
        times=times,
        grids=[
            Grid("Names", ["the post's", "what the post says", "what it is called elsewhere"], definitions),
            Grid("Signs", ["time", "taken", "below 0 as printed", "below 0 turned round"], signs),
        ],
        samples={"requests": [{"arrival_ts": r.arrival_ts, "steps": r.steps} for r in requests]},
    )


def run(setting: Setting) -> list[RequestTimes]:
    """Timestamps of more requests than the stage has places."""
    config = engine(setting)
    model = setting.load(config)
    prompts = random_prompts(model, PLACES + LATECOMERS, PROMPT_LEN)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    stage = build_stage(setting.stages[STAGE], model, config)
    return record_times(stage, [Sequence(prompt, params) for prompt in prompts])


def never_negative(minuend: str, subtrahend: str, taken: List[Mapping[str, float]]) -> str:
    """The order of the two whose difference is below 0 for none; as given where both are."""
    printed, turned = signs_of(minuend, subtrahend, taken)
    if printed == 0:
        return f"{minuend} - {subtrahend}"
    return f"{subtrahend} - {minuend}" if turned == 0 else "neither"


def signs_of(minuend: str, subtrahend: str, taken: List[Mapping[str, float]]) -> tuple[int, int]:
    """How many differences are below 0: minuend - subtrahend, and the other way round."""
    differences = [stamps[minuend] - stamps[subtrahend] for stamps in taken]
    return sum(d < 0 for d in differences), sum(d > 0 for d in differences)


def first_finish(requests: List[RequestTimes]) -> float:
    """When the first of all requests had its last token."""
    return min(request.steps[-1]["finish_ts"] for request in requests)
