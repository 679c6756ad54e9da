"""online: requests that come by the clock, all contenders in turn on the same arrivals, for each budget and rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roseinfer.arrivals import all_at_second_0
from roseinfer.engine.calls import Stop, noted_interrupts
from roseinfer.models import Model, load_model, model_config
from roseinfer.planning.definitions import definitions

from ..contenders import ContenderFailed
from ..interleave import OnProgress, Progress, phase_of, turns
from ..provenance import describe_host
from ..race_setting import RaceSetting
from ..settings import Online
from ..token_check import NEAR_TIE, Referee
from .contenders import OnlineContender, contenders_of
from .result import OnlineResult, rows_of
from .serve import OnlineRun
from .workload import Work, with_prompts

WARM_UP_REQUESTS = 4


@dataclass(frozen=True)
class Load:
    """How fast requests come. rate: requests a second, None for all at once or for a trace. share: of the capacity."""

    label: str
    rate: float | None = None
    share: float | None = None


def online(setting: Online, on_progress: OnProgress | None = None) -> OnlineResult:
    """Serve the setting's workload by each contender, the engine under each policy, with each budget.

    A budget below max_num_seqs runs with as many sequences as it has tokens. At each rate all run in turn, after a
    short run each for warm-up. In fp32 tokens must be the reference's, or all but as likely (NEAR_TIE): which requests
    share a step depends on the clock, and so does the last digit of a sum.

    Ctrl-C ends it between two steps: the result has what was measured, and `interrupted` says where. Raises ValueError
    for requests that are too long, TokensDiffer for wrong tokens, ContenderFailed when a contender fails.
    """
    lengths = setting.arrivals(None)
    most_tokens = max(arrival.prompt_len + arrival.output_len for arrival in lengths)
    if most_tokens > (allowed := model_config(setting.model).max_model_len):
        raise ValueError(
            f"workload: a request of {most_tokens} tokens, prompt and output, allowed: max_model_len={allowed}"
        )
    shared = RaceSetting(setting.model, setting.device, min(setting.max_num_seqs, len(lengths)), most_tokens)
    model = load_model(setting.model, setting.device)
    running, left_out = contenders_of(shared, setting.dtype, setting.contenders, setting.policies, setting.budgets)
    if not running:
        raise ContenderFailed(f"no contender can run: {'; '.join(left_out.values())}")
    with noted_interrupts() as stop:
        race = _Race(model, running, setting, stop, on_progress)
        race.run()
    return OnlineResult(
        arguments=setting.record(),
        **describe_host(model.device),
        definitions=definitions(),
        capacity=race.capacity,
        rows=rows_of(race.samples),
        samples=race.samples,
        tokens=race.referee.verdicts,
        interrupted=race.interrupted,
        left_out=left_out,
    )


class _Race:
    """All runs of a race, in order; its attributes collect the results."""

    def __init__(
        self,
        model: Model,
        running: list[OnlineContender],
        setting: Online,
        stop: Stop,
        on_progress: OnProgress | None,
    ) -> None:
        self.model, self.running, self.setting, self.stop = model, running, setting, stop
        self.work = with_prompts(setting.arrivals(None), model, setting.seed)
        self.referee = Referee(model, [prompt for _, prompt in self.work])
        self.samples: list[dict[str, Any]] = []
        self.capacity: dict[str, Any] | None = None
        self.interrupted: str | None = None
        self._progress = self._planned(on_progress)

    def run(self) -> None:
        """Run all, until `stop` says that it is enough; `interrupted` says where that was."""
        self.interrupted = "in a warm-up, or between two runs"
        for contender in self.running:
            if self.stop():
                return
            self._one("warm-up", contender, warm_up(self.work))
        if self.setting.loads and not self.stop():
            self._measure_capacity()
        for load in self._loads():
            work = with_prompts(self.setting.arrivals(load.rate), self.model, self.setting.seed)
            for repeat, _, contender in turns(self.running, self.setting.repeats):
                if self.stop() or not self._measured(load, work, repeat, contender):
                    return
        if not self.setting.loads or self.capacity:
            self.interrupted = None

    def _planned(self, on_progress: OnProgress | None) -> Progress:
        """Plan the progress of all runs in tokens. Runs by a rate or a trace last at least until their last arrival."""
        setting = self.setting
        num_runs = max(1, len(setting.rates) + len(setting.loads)) * setting.repeats  # of each contender
        tokens = num_tokens(warm_up(self.work)) + num_runs * num_tokens(self.work)
        planned = {contender.called: tokens for contender in self.running}
        planned[self.running[0].called] += bool(setting.loads) * num_tokens(self.work)
        known = [None] if setting.trace else setting.rates
        coming = sum(setting.arrivals(rate)[-1].seconds for rate in known)
        runs_total = len(self.running) * (1 + num_runs) + bool(setting.loads)
        return Progress(on_progress, planned, runs_total, at_least=len(self.running) * setting.repeats * coming)

    def _measure_capacity(self) -> None:
        first = self.running[0]
        served = self._one("capacity", first, self.work)
        if served.complete:
            record, figures = served.record(), ("requests_per_second", "tokens_per_second", "seconds")
            self.capacity = {"name": first.name, "budget": first.budget} | {name: record[name] for name in figures}

    def _loads(self) -> Iterator[Load]:
        rates, loads = self.setting.rates, self.setting.loads
        if self.setting.trace:
            yield Load("trace")
        elif not rates and not loads:
            yield Load("all at once")
        for rate in rates:
            yield Load(f"{rate:g}/s", rate)
        if self.capacity:
            for share in loads:
                rate = share * self.capacity["requests_per_second"]
                yield Load(f"{share:.0%} of capacity", rate, share)

    def _measured(self, load: Load, work: Work, repeat: int, contender: OnlineContender) -> bool:
        """Take a sample; return whether the run was complete."""
        served = self._one(f"{load.label}, {phase_of(repeat, self.setting.repeats)}", contender, work, repeat)
        who = {"name": contender.name, "budget": contender.budget, "max_num_seqs": contender.max_num_seqs}
        when = {"load": load.label, "rate": load.rate, "share": load.share, "repeat": repeat}
        self.samples.append(who | when | served.record())
        if not served.complete:
            done = f"{sum(served.finished)} of {served.num_requests} requests were done"
            self.interrupted = f"{contender.called}, {load.label}: {done}"
            return False
        if [len(output) for output in served.outputs] != [arrival.output_len for arrival, _ in work]:
            raise ContenderFailed(f"{contender.name} gave outputs of other lengths than were asked for")
        if self.setting.dtype == "float32":
            self.referee.check(contender.name, served.outputs, NEAR_TIE)
        return True

    def _one(self, phase: str, contender: OnlineContender, work: Work, repeat: int = -1) -> OnlineRun:
        self._progress.begin(phase, contender.called, num_tokens(work), repeat)
        return contender.run(work, self.stop)


def num_tokens(work: Work) -> int:
    return sum(arrival.prompt_len + arrival.output_len for arrival, _ in work)


def warm_up(work: Work) -> Work:
    """Make the work of a warm-up: the first requests, all at once."""
    arrivals = all_at_second_0(arrival for arrival, _ in work[:WARM_UP_REQUESTS])
    return list(zip(arrivals, [prompt for _, prompt in work], strict=False))
