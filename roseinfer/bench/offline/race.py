"""offline: whole batches, prefill to last token, everyone in turn on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from roseinfer.models import Model, load_model, model_config
from roseinfer.settings import names_of
from roseinfer.stage import Stage

from ..contenders import ContenderFailed
from ..interleave import ROWS_OF_WEIGHTS, OnProgress, Progress, reported
from ..ladder import check_stages
from ..provenance import describe_host
from ..race_setting import RaceSetting
from ..settings import OFFLINE, Offline
from ..token_check import Referee
from .contenders import BatchContender, Tokens, entered
from .floor import machine_for, run_floor
from .prompts import PROMPTS
from .result import OfflineResult, rows_of

WARM_UP_TOKENS = 4
Sample = dict[str, Any]


def offline(
    setting: Offline, stages: Sequence[type[Stage]] = (), on_progress: OnProgress | None = None
) -> OfflineResult:
    """Race the setting's contenders and `stages` over every prompt length and batch size.

    In each of these cells all run in turn, A B C, B C A, ..., in all precisions ("int8" and "int4" apply to the weights
    alone): first a short run each for warm-up, then `repeats` that count. All have the same prompts and decode
    greedily, max_tokens each, end tokens ignored; a run is everything from the prompts to the tokens. In fp32 tokens
    must equal the reference's, or be as near as NEAR allows. Those that cannot run are in the result's left_out, with
    the reason.

    Raises ValueError for a bad argument, TokensDiffer for wrong tokens, ContenderFailed when a contender fails after
    its warm-up or none is left.
    """
    _check(setting, stages)
    spec, device, max_tokens, repeats = setting.model, setting.device, setting.max_tokens, setting.repeats
    shared = RaceSetting(spec, device, max(setting.batch_sizes), setting.longest, setting.drafting)
    model = load_model(spec, device)
    machines = {precision: machine_for(device, precision) for precision in setting.precisions}
    samples: list[Sample] = []
    floors: dict[tuple, float] = {}
    cells = list(product(setting.prompt_lens, setting.batch_sizes))
    with entered(shared, stages, setting.contenders, setting.precisions) as (entrants, left_out):
        if not entrants:
            raise ContenderFailed(f"no contender can run: {'; '.join(left_out.values())}")
        all_work = sum(
            run_work(*cell, tokens) for cell in cells for tokens in (_warm_up(max_tokens), *[max_tokens] * repeats)
        )
        progress = Progress(
            on_progress,
            {entrant.called: all_work for entrant in entrants},
            runs_total=len(cells) * len(entrants) * (1 + repeats),
        )
        for prompt_len, batch_size in cells:
            given = PROMPTS[setting.prompts](model, spec, batch_size, prompt_len, max_tokens, setting.seed)
            cell = _Cell(model, given, prompt_len, max_tokens, progress)
            running = cell.warmed_up(entrants, left_out)
            samples += cell.measured(running, repeats)
            for entrant in running:
                floors[(entrant.name, entrant.precision, prompt_len, batch_size)] = run_floor(
                    model.config,
                    machines[entrant.precision],
                    batch_size,
                    prompt_len,
                    max_tokens,
                    entrant.weights,
                    entrant.kv_cache,
                )
        versions = {name: version for entrant in entrants for name, version in entrant.versions.items()}
    host = describe_host(model.device)
    return OfflineResult(
        arguments=setting.record() | {"stages": [stage.name for stage in stages]},
        **host | {"versions": host["versions"] | versions},
        machines={
            name: {"read_bytes_per_s": m.read_bytes_per_s, "flops_per_s": m.flops_per_s, "samples": m.samples}
            for name, m in machines.items()
        },
        rows=rows_of(samples, floors),
        samples=samples,
        left_out=left_out,
    )


def run_work(prompt_len: int, batch_size: int, max_tokens: int) -> int:
    """Estimate how long a run takes, relative to others, by its computed rows and the weights that each step reads.

    On a CPU the weights take as long as about ROWS_OF_WEIGHTS rows.
    """
    return batch_size * prompt_len + max_tokens * (ROWS_OF_WEIGHTS + batch_size)


def _warm_up(max_tokens: int) -> int:
    return min(WARM_UP_TOKENS, max_tokens)


class _Cell:
    """One prompt length and batch size: everyone on the same prompts."""

    def __init__(self, model: Model, prompts: Tokens, prompt_len: int, max_tokens: int, progress: Progress) -> None:
        batch_size = len(prompts)
        self.sizes = {"prompt_len": prompt_len, "batch_size": batch_size}
        self.prompts = prompts
        self.max_tokens = max_tokens
        self.referee = Referee(model, self.prompts)
        self.progress = progress
        self.right: dict[str, Tokens] = {}  # the last ones that were checked
        self.phase = f"prompt {prompt_len}, batch {batch_size}"

    def warmed_up(self, entrants: Sequence[BatchContender], left_out: dict[str, str]) -> list[BatchContender]:
        """Return the contenders that finish a short run; why the others do not goes to left_out."""
        running = []
        for entrant in entrants:
            few = _warm_up(self.max_tokens)
            self.progress.begin(f"{self.phase}, warm-up", entrant.called, self._work(few))
            try:
                entrant.run(self.prompts, few)
            except ContenderFailed as error:
                left_out[f"{entrant.called}, {self.phase}"] = str(error)
            else:
                running.append(entrant)
        if not running:
            raise ContenderFailed(f"{self.phase}: no contender finished the warm-up: {'; '.join(left_out.values())}")
        return running

    def measured(self, entrants: Sequence[BatchContender], repeats: int) -> list[Sample]:
        """Take `repeats` samples of each contender, in the order in which they run."""
        runs = {entrant.called: partial(self._sample, entrant) for entrant in entrants}
        taken = reported(self.progress, runs, repeats, where=f"{self.phase}, ", work=self._work(self.max_tokens))
        samples = sorted((sample for own in taken.values() for sample in own), key=lambda sample: sample["began"])
        # fp32 comes first, and has been checked; without any, the first contender is what others are compared with.
        yardstick = taken[entrants[0].called][0]["outputs"]
        for sample in samples:
            sample["tokens_equal"] = share_equal(sample.pop("outputs"), yardstick)
        return samples

    def _work(self, max_tokens: int) -> int:
        return run_work(**self.sizes, max_tokens=max_tokens)

    def _sample(self, entrant: BatchContender) -> Sample:
        before = entrant.drafts()
        outputs, began, ended = entrant.run(self.prompts, self.max_tokens)
        drafted, accepted = (now - earlier for now, earlier in zip(entrant.drafts(), before, strict=True))
        self._check(entrant, outputs)
        return {
            "name": entrant.name,
            "precision": entrant.precision,
            **self.sizes,
            "began": began,
            "ended": ended,
            "seconds": ended - began,
            "tokens": sum(map(len, outputs)),
            "outputs": outputs,
            **({"drafted": drafted, "accepted": accepted} if drafted else {}),
        }

    def _check(self, entrant: BatchContender, outputs: Tokens) -> None:
        lengths = {len(output) for output in outputs}
        if len(outputs) != len(self.prompts) or lengths != {self.max_tokens}:
            raise ContenderFailed(
                f"{entrant.called} gave {len(outputs)} outputs of {sorted(lengths)} tokens, asked "
                f"were {len(self.prompts)} of {self.max_tokens}"
            )
        if entrant.precision == "float32" and self.right.get(entrant.called) != outputs:
            self.referee.check(entrant.name, outputs, entrant.near)
            self.right[entrant.called] = outputs


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
    if setting.drafting and "engine" not in setting.contenders:
        raise ValueError(
            f"speculative={setting.speculative!r} is for contenders with 'engine', got {list(setting.contenders)!r}"
        )
    if setting.longest > (allowed := model_config(setting.model).max_model_len):
        raise ValueError(
            f"prompt_lens: {max(setting.prompt_lens)} + max_tokens={setting.max_tokens} is {setting.longest} tokens, "
            f"allowed: max_model_len={allowed}"
        )
