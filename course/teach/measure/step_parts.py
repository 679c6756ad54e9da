"""step_parts: where the wall time of a decode step goes on the CPU, by the stage's own spans and within its forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import mean
from time import perf_counter
from typing import Any

from roseinfer.bench.contenders import StageContender
from roseinfer.bench.interleave import interleaved
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling.span_times import SpanTimes, TimedSpan
from roseinfer.profiling.spans import listening, span
from roseinfer.profiling.traces.phases import PHASES
from roseinfer.stage import Stage

TABLES, ATTENTION, PRODUCTS = "gather, append, tables", "attention", "matrix products"
FORWARD, REPLAY = "rest of the forward", "replay of a graph"
CHOICE, HOST = "choice of tokens", "rest on the host"
PARTS = (TABLES, ATTENTION, PRODUCTS, FORWARD, REPLAY, CHOICE, HOST)
STEPS_PREFIX = "roseinfer.decode_step_sessions."
OWN = {  # spans of stages that move or look up what is cached
    PHASES["gather"],
    PHASES["append"],
    *(STEPS_PREFIX + name for name in ("build_block_tables", "h2d_block_tables")),
}
WARM_UP = 3  # steps, not labelled: a graph that is captured in one of them must not hold our spans


@dataclass(frozen=True)
class TimedStep:
    began: float
    ended: float
    spans: list[TimedSpan]

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part; together the parts are the step."""

        def total(*names: str) -> float:
            return sum(each.seconds for each in self.spans if each.name in names)

        forward, inside = total(PHASES["forward"]), total(ATTENTION, PRODUCTS)
        parts = {TABLES: total(*OWN), ATTENTION: total(ATTENTION), PRODUCTS: total(PRODUCTS)}
        # A replay runs no module, so that nothing inside it is heard.
        parts |= {FORWARD: forward - inside, REPLAY: 0.0} if inside else {FORWARD: 0.0, REPLAY: forward}
        parts[CHOICE] = self.ended - max(each.ended for each in self.spans if each.name not in (ATTENTION, PRODUCTS))
        return parts | {HOST: self.ended - self.began - sum(parts.values())}


def step_parts(
    stages: tuple[type[Stage], ...], model: Model, batch_size: int, prompt_len: int, steps: int
) -> dict[str, dict[str, float]]:
    """Measure the mean seconds of each part of a decode step, by stage. The stages take their steps in turn."""
    prompts = [[1 + row % 7] * prompt_len for row in range(batch_size)]
    names = [name for name, module in model.named_modules() if hasattr(module, "in_features")]
    runs: dict[str, Callable[[], TimedStep]] = {}
    for stage_class in stages:
        stage, seqs = StageContender(stage_class, model, prompts, steps + WARM_UP + 3).at_step(WARM_UP)
        runs[stage_class.name] = partial(_timed, stage, seqs, names)
    samples = interleaved(runs, repeats=steps, warmup=1)
    return {name: _mean([step.parts() for step in own]) for name, own in samples.items()}


def _mean(samples: list[dict[str, float]]) -> dict[str, float]:
    return {part: mean(sample[part] for sample in samples) for part in PARTS}


def _timed(stage: Stage, seqs: list[Any], names: list[str]) -> TimedStep:
    heard = SpanTimes(lambda name, around: name in {*OWN, PHASES["forward"], ATTENTION, PRODUCTS})
    with listening(heard), labelled(stage.model, names):
        began = perf_counter()
        decode_step(stage, seqs)
        ended = perf_counter()
    return TimedStep(began, ended, heard.kept)


@contextmanager
def labelled(model: Any, names: list[str]) -> Iterator[None]:
    """Put spans around attention and around the matrix products of a model: its layers `names`, and its logits."""
    layers: Mapping[str, Any] = dict(model.named_modules())
    open_spans: list[span] = []

    def begin(module: Any, args: Any) -> None:
        open_spans.append(span(PRODUCTS))
        open_spans[-1].__enter__()

    def end(module: Any, args: Any, result: Any) -> None:
        open_spans.pop().__exit__(None, None, None)

    def with_attention(module: Any, args: Any) -> Any:
        token_ids, positions, attend = args

        def timed(*inputs: Any) -> Any:
            with span(ATTENTION):
                return attend(*inputs)

        return token_ids, positions, timed

    logits = model.logits

    def timed_logits(hidden: Any) -> Any:
        with span(PRODUCTS):
            return logits(hidden)

    inner = [layers[name] for name in names if name != "lm_head"]  # which logits calls
    handles = [model.register_forward_pre_hook(with_attention)]
    handles += [layer.register_forward_pre_hook(begin) for layer in inner]
    handles += [layer.register_forward_hook(end) for layer in inner]
    model.logits = timed_logits
    try:
        yield
    finally:
        del model.logits
        for handle in handles:
            handle.remove()
