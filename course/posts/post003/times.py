"""Post 003: the times of a request, from the engine's own timestamps, and the sign of each."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from statistics import mean

from roseinfer.bench.ladder import random_prompts
from roseinfer.drive import drive
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.models import Model
from roseinfer.planning.definitions import METRICS_BY_NAME
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.sequence import SamplingParams, Sequence

from ..data import post_facts, post_table
from ..planned import engine_of
from ..report.content import Exact, Fact, Time, judge
from ..report.setting import Setting
from ..report.template import Values

PLACES, LATECOMERS = 4, 2
PROMPT_LEN, TOKENS = 8, 6
RENAMED = {"scheduling2inference": "scheduling_time"}  # the post's name -> the engine's
Stamps = dict[str, float]


def engine(setting: Setting) -> PlannedEngine:
    return setting.engine(setting.model or "tiny", PLACES, PROMPT_LEN + TOKENS, dtype="float32")


def section(setting: Setting) -> Values:
    config = engine(setting)
    requests = record_times(config, setting.load(config))
    tokens = [stamps for request in requests for stamps in timestamps(request)]
    first_tokens = [timestamps(request)[0] for request in requests]
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
        ours = METRICS_BY_NAME[RENAMED.get(row.name, row.name)]
        definitions.append([row.name, row.meaning, f"{ours.name} = {ours.formula}", ours.meaning])
        signs.append([row.name, len(taken), *signs_of(row.minuend, row.subtrahend, taken)])
        seconds = mean(value for request in requests for value in ours.values(request))
        times.append(Time(f"{row.name}, mean", "ms", None, 1e3 * seconds))
    for name, said in post_facts("003")["delays"].items():
        ours = METRICS_BY_NAME[name]
        definitions.append([name.upper(), said, f"{ours.name} = {ours.formula}", ours.meaning])
    ttft = mean(METRICS_BY_NAME["ttft"].values(request)[0] for request in requests)
    times.append(Time("TTFT, mean: waiting_time and the first step", "ms", None, 1e3 * ttft))
    first_ended = min(request.ended for request in requests)
    waited = sum(request.first_scheduled >= first_ended for request in requests)
    return {
        "num_requests": len(requests),
        "num_places": PLACES,
        "waited": waited,
        "facts": facts,
        "times": times,
        "definitions": definitions,
        "signs": signs,
        "samples": {"requests": [timestamps(request) for request in requests]},
    }


def record_times(config: PlannedEngine, model: Model) -> list[SequenceTimes]:
    """Record the times of more requests than the engine has slots. They all come at once; steps run in turn."""
    engine = engine_of(config, model, enable_prefix_caching=True)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    prompts = random_prompts(model, PLACES + LATECOMERS, PROMPT_LEN)
    arrival = engine.metrics.clock()
    requests = [engine.add(Sequence(prompt, params), arrival) for prompt in prompts]
    list(drive(engine))
    return requests


def timestamps(request: SequenceTimes) -> list[Stamps]:
    """Return all six timestamps by the post's names, for each token of a request."""
    first = {"arrival_ts": request.arrival, "first_scheduled_ts": request.first_scheduled}
    of_step = ("scheduled", "inference_begin", "inference_end", "finish")
    return [first | {f"{name}_ts": getattr(step, name) for name in of_step} for step in request.steps]


def never_negative(minuend: str, subtrahend: str, taken: abc.Sequence[Mapping[str, float]]) -> str:
    """Write the two's difference in the order that is never below 0, as given if both are; else "neither"."""
    printed, turned = signs_of(minuend, subtrahend, taken)
    if printed == 0:
        return f"{minuend} - {subtrahend}"
    return f"{subtrahend} - {minuend}" if turned == 0 else "neither"


def signs_of(minuend: str, subtrahend: str, taken: abc.Sequence[Mapping[str, float]]) -> tuple[int, int]:
    """Count the differences below 0: of minuend - subtrahend, and the other way round."""
    differences = [stamps[minuend] - stamps[subtrahend] for stamps in taken]
    return sum(d < 0 for d in differences), sum(d > 0 for d in differences)
