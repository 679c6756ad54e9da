"""offline: whole batches, prefill to last token, everyone in turn on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from roseinfer.models import load_model, model_config
from roseinfer.models.gguf_path import gguf_path
from roseinfer.settings import names_of
from roseinfer.stage import Stage

from ..contenders import ContenderFailed, require_fit
from ..interleave import OnProgress
from ..ladder import check_stages, random_prompts
from ..provenance import describe_host
from ..race import Contender, Race, Sample, check_lengths
from ..settings import OFFLINE, STORED, Offline
from ..token_check import Referee
from ..workload import Work, batch_of
from .contenders import NEAR, Tokens, cache_dtype, entered
from .floor import bytes_of_value, machine_for, run_floor
from .result import OfflineResult, rows_of

WARM_UP_TOKENS = 4


def offline(
    setting: Offline, stages: Sequence[type[Stage]] = (), on_progress: OnProgress | None = None
) -> OfflineResult:
    """Race the setting's contenders and `stages` over every prompt length and batch size.

    In each of these cells all run in turn, A B C, B C A, ..., in all precisions ("int8", "int4" and "stored" change the
    weights alone): first a short run each for warm-up, then `repeats` that count. All have the same prompts and decode
    greedily, max_tokens each, end tokens ignored; a run is everything from the prompts to the tokens. In fp32 tokens
    must equal the reference's, or be as near as NEAR allows. Those that cannot run are in the result's left_out, with
    the reason.

    Raises ValueError for a bad argument, TokensDiffer for wrong tokens, ContenderFailed when a contender fails after
    its warm-up, or none is left.
    """
    _check(setting, stages)
    spec, device, max_tokens, repeats = setting.model, setting.device, setting.max_tokens, setting.repeats
    model = load_model(spec, device)
    machines = {precision: machine_for(device, precision) for precision in setting.precisions}
    value_bytes = {precision: bytes_of_value(precision, spec) for precision in setting.precisions}
    few = min(WARM_UP_TOKENS, max_tokens)
    samples: list[Sample] = []

    def floor(name: str, precision: str, prompt_len: int, batch_size: int) -> float:
        kinds = value_bytes[precision], cache_dtype(name, precision)
        return run_floor(model.config, machines[precision], batch_size, prompt_len, max_tokens, *kinds)

    with entered(setting, stages) as (entrants, left_out):
        if not entrants:
            raise ContenderFailed(f"no contender can run: {'; '.join(left_out.values())}")
        prompts = {
            (prompt_len, size): random_prompts(model, size, prompt_len, setting.seed)
            for prompt_len, size in product(setting.prompt_lens, setting.batch_sizes)
        }
        plan = [batch_of(own, tokens) for own in prompts.values() for tokens in (few, *[max_tokens] * repeats)]
        race = Race({entrant.called: plan for entrant in entrants}, repeats, on_progress)
        for (prompt_len, batch_size), own in prompts.items():
            sizes = {"prompt_len": prompt_len, "batch_size": batch_size}
            where = f"prompt {prompt_len}, batch {batch_size}"
            running = warmed_up(race, where, entrants, batch_of(own, few), left_out)
            taken = measured(race, where, running, batch_of(own, max_tokens), Referee(model, own))
            samples += [sizes | sample for sample in taken]
        versions = {name: version for entrant in entrants for name, version in entrant.versions.items()}
    host = describe_host(model.device)
    return OfflineResult(
        arguments=setting.record() | {"stages": [stage.name for stage in stages]},
        **host | {"versions": host["versions"] | versions},
        machines={
            name: {"read_bytes_per_s": m.read_bytes_per_s, "flops_per_s": m.flops_per_s, "samples": m.samples}
            for name, m in machines.items()
        },
        rows=rows_of(samples, floor),
        samples=samples,
        left_out=left_out,
    )


def warmed_up(
    race: Race, where: str, entrants: Sequence[Contender], work: Work, left_out: dict[str, str]
) -> list[Contender]:
    """Return the contenders that finish a short run; why the others do not goes to left_out."""
    running = []
    for entrant in entrants:
        try:
            race.run(f"{where}, warm-up", entrant, work)
        except ContenderFailed as error:
            left_out[f"{entrant.called}, {where}"] = str(error)
        else:
            running.append(entrant)
    if not running:
        raise ContenderFailed(f"{where}: no contender finished the warm-up: {'; '.join(left_out.values())}")
    return running


def measured(race: Race, where: str, running: Sequence[Contender], work: Work, referee: Referee) -> list[Sample]:
    """Take all samples of a cell, in the order in which they run."""
    taken = []
    for contender, _, run in race.in_turn(where, running, work):
        check_lengths(contender, work, run)
        if contender.key["precision"] == "float32":
            referee.check(contender.name, run.outputs, NEAR.get(contender.name, 0.0))
        times = {"began": run.began, "ended": run.ended, "seconds": run.seconds, "tokens": run.num_tokens}
        taken.append(({"name": contender.name, **contender.key, **times}, run.outputs))
    # fp32 comes first, and has been checked; without any, the first contender is what others are compared with.
    yardstick = taken[0][1]
    return [sample | {"tokens_equal": share_equal(outputs, yardstick)} for sample, outputs in taken]


def share_equal(outputs: Tokens, expected: Tokens) -> float:
    """Compute the share of the tokens that are the expected one at their position."""
    pairs = [pair for one, other in zip(outputs, expected, strict=True) for pair in zip(one, other, strict=True)]
    return sum(got == want for got, want in pairs) / len(pairs)


def _check(setting: Offline, stages: Sequence[type[Stage]]) -> None:
    names_of(OFFLINE, at_least=0)("contenders", setting.contenders)
    if stages:
        check_stages(stages)
    if not setting.contenders and not stages:
        raise ValueError("contenders must name at least one, or stages, got none")
    if STORED in setting.precisions and not gguf_path(setting.model):
        raise ValueError(f"quantization {STORED!r} is for the model of a GGUF file, got {setting.model!r}")
    if STORED in setting.precisions and torch.device(setting.device).type != "cpu":
        raise ValueError(f"quantization {STORED!r} runs on a CPU, got device {setting.device!r}")
    require_fit(model_config(setting.model), prompt_lens=max(setting.prompt_lens), max_tokens=setting.max_tokens)
