"""online: requests that come by the clock, all contenders in turn on the same arrivals, for each budget and rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from roseinfer.arrivals import all_at_second_0
from roseinfer.engine.calls import Stop, noted_interrupts
from roseinfer.models import Model, load_model, model_config
from roseinfer.planning.definitions import definitions

from ..contenders import ContenderFailed, require_fit
from ..interleave import OnProgress
from ..provenance import describe_host
from ..race import Contender, Race, Sample, Stopped, check_lengths
from ..settings import Online
from ..token_check import NEAR_TIE, Referee
from ..workload import with_prompts
from .contenders import contenders_of
from .result import OnlineResult, rows_of

WARM_UP_REQUESTS = 4


@dataclass(frozen=True)
class Load:
    """How fast requests come. rate: requests a second, None for all at once or for a trace. share: of the capacity."""

    label: str
    rate: float | None = None
    share: float | None = None


def online(setting: Online, on_progress: OnProgress | None = None) -> OnlineResult:
    """Serve the setting's workload by each contender, with each budget.

    A budget below max_num_seqs runs with as many sequences as it has tokens. At each rate all run in turn, after a
    short run each for warm-up. In fp32 tokens must be the reference's, or all but as likely (NEAR_TIE): which requests
    share a step depends on the clock, and so does the last digit of a sum.

    Ctrl-C ends it between two steps: the result has what was measured, and `interrupted` says where. Raises ValueError
    for requests that are too long, TokensDiffer for wrong tokens, ContenderFailed when a contender fails.
    """
    longest = setting.longest
    require_fit(model_config(setting.model), prompt_tokens=longest.prompt_len, output_tokens=longest.output_len)
    model = load_model(setting.model, setting.device)
    running, left_out = contenders_of(setting)
    if not running:
        raise ContenderFailed(f"no contender can run: {'; '.join(left_out.values())}")
    with noted_interrupts() as stop:
        taken = _OnlineRace(model, running, setting, stop, on_progress)
        taken.run()
    return OnlineResult(
        arguments=setting.record(),
        **describe_host(model.device),
        definitions=definitions(),
        capacity=taken.capacity,
        rows=rows_of(taken.samples),
        samples=taken.samples,
        tokens=taken.referee.verdicts,
        interrupted=taken.interrupted,
        left_out=left_out,
    )


class _OnlineRace:
    """All runs of a race, in order; its attributes collect the results."""

    def __init__(
        self, model: Model, running: list[Contender], setting: Online, stop: Stop, on_progress: OnProgress | None
    ) -> None:
        self.model, self.running, self.setting = model, running, setting
        self.work = with_prompts(setting.arrivals(None), model, setting.seed)
        self.short = list(zip(all_at_second_0(a for a, _ in self.work[:WARM_UP_REQUESTS]), self._prompts, strict=False))
        self.referee = Referee(model, self._prompts)
        self.samples: list[Sample] = []
        self.capacity: dict[str, Any] | None = None
        self.interrupted: str | None = "in a warm-up, or between two runs"
        self.race = self._planned(stop, on_progress)

    def run(self) -> None:
        """Run all, until it is stopped; `interrupted` says where that was."""
        with suppress(Stopped):
            for contender in self.running:
                self.race.run("warm-up", contender, self.short)
            for load in self._loads():
                self._measure(load)
            self.interrupted = None

    @property
    def _prompts(self) -> list[list[int]]:
        return [prompt for _, prompt in self.work]

    def _planned(self, stop: Stop, on_progress: OnProgress | None) -> Race:
        """Plan all runs. Those by a rate or a trace last at least until their last arrival."""
        setting, running = self.setting, self.running
        num_loads = max(1, len(setting.rates) + len(setting.loads))
        plan = {contender.called: [self.short, *[self.work] * num_loads * setting.repeats] for contender in running}
        plan[running[0].called] += [self.work] * bool(setting.loads)
        coming = sum(setting.arrivals(rate)[-1].seconds for rate in ([None] if setting.trace else setting.rates))
        return Race(plan, setting.repeats, on_progress, stop, len(running) * setting.repeats * coming)

    def _measured_capacity(self) -> float:
        """Return the requests a second of the first contender when all come at once."""
        first = self.running[0]
        run = self.race.run("capacity", first, self.work)
        if not run.complete:
            raise Stopped
        record, figures = run.record(), ("requests_per_second", "tokens_per_second", "seconds")
        who = {"name": first.name, "budget": first.key["budget"]}
        self.capacity = who | {name: record[name] for name in figures}
        return float(record["requests_per_second"])

    def _loads(self) -> Iterator[Load]:
        rates, loads = self.setting.rates, self.setting.loads
        capacity = self._measured_capacity() if loads else 0.0
        if self.setting.trace:
            yield Load("trace")
        elif not rates and not loads:
            yield Load("all at once")
        for rate in rates:
            yield Load(f"{rate:g}/s", rate)
        for share in loads:
            yield Load(f"{share:.0%} of capacity", share * capacity, share)

    def _measure(self, load: Load) -> None:
        """Take the samples of a load. Raises Stopped after a run that is not complete."""
        work = with_prompts(self.setting.arrivals(load.rate), self.model, self.setting.seed)
        when = {"load": load.label, "rate": load.rate, "share": load.share}
        for contender, repeat, run in self.race.in_turn(load.label, self.running, work):
            self.samples.append({"name": contender.name, **contender.key, **when, "repeat": repeat, **run.record()})
            if not run.complete:
                done = f"{sum(run.finished)} of {run.num_requests} requests were done"
                self.interrupted = f"{contender.called}, {load.label}: {done}"
                raise Stopped
            check_lengths(contender, work, run)
            if self.setting.dtype == "float32":
                self.referee.check(contender.name, run.outputs, NEAR_TIE)
