"""Steps of the engine as it runs them, beside the same steps with each operation started by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ClassVar

from roseinfer.arguments import counted
from roseinfer.display.measured import MachineResult
from roseinfer.display.text_table import Column
from roseinfer.engine.config import STEP_TOKENS
from roseinfer.engine.engine import Engine
from roseinfer.engine.speculation.settings import NGRAM
from roseinfer.engine.step import Step
from roseinfer.models import Model, model_config
from roseinfer.profiling.clock import seconds_of
from roseinfer.profiling.progress import OnProgress
from roseinfer.sequence import SamplingParams, Sequence

from .contenders import require_fit
from .decode_step import model_of
from .interleave import race
from .ladder import mixed_prompts
from .provenance import describe_host, where
from .settings import Eager, blocks_of

AS_IT_RUNS, EAGER = "engine", "eager"
Row = dict[str, Any]


def _us(name: str, row: Row) -> str:
    seconds = row["seconds"][name]
    return f"{1e6 * median(seconds):,.0f} ({1e6 * min(seconds):,.0f} - {1e6 * max(seconds):,.0f})"


def _ratio(row: Row) -> float:
    return median(row["seconds"][EAGER]) / median(row["seconds"][AS_IT_RUNS])


@dataclass(frozen=True, kw_only=True)
class EagerResult(MachineResult):
    """Times of steps. rows: one for each kind of step, with the seconds of every step of both ways to run it."""

    COLUMNS: ClassVar = (
        Column("step", of="step"),
        Column("tokens", of="tokens"),
        Column(f"{AS_IT_RUNS} us", right=True, of=partial(_us, AS_IT_RUNS)),
        Column(f"{EAGER} us", right=True, of=partial(_us, EAGER)),
        Column("ratio", "{:.2f}".format, of=_ratio),
    )

    def short_row(self, row: Row) -> Row:
        medians = {name: median(seconds) for name, seconds in row["seconds"].items()}
        return {"step": row["step"], "tokens": row["tokens"], "seconds": medians}

    def notes(self) -> list[str]:
        a = self.arguments
        return [
            f"{a['model']} in {a['dtype']} on {where(self)}; {a['context']} cached tokens in each sequence that "
            f"decodes. From a step's inputs to its tokens on the host: the median of {a['repeats']} interleaved steps, "
            "and the range. ratio: how much longer a step takes with enforce_eager."
        ]


def eager(setting: Eager, on_progress: OnProgress | None = None) -> EagerResult:
    """Time steps of each kind on an engine and on one with enforce_eager, all in turn.

    Raises ValueError for a context or a prompt that is too long for the model.
    """
    shape = model_config(setting.model)
    require_fit(shape, context=setting.context, num_drafts=setting.num_drafts, new=1)
    require_fit(shape, prompt_len=setting.prompt_len)
    model = model_of(setting.model, setting.device, setting.dtype)
    runs: dict[str, Callable[[], float]] = {}
    for name in (AS_IT_RUNS, EAGER):
        engine = engine_of(setting, model, enforce_eager=name == EAGER)
        steps = steps_of(setting, engine)
        for kind, step in steps.items():
            run = partial(run_step, engine, step)
            run()  # compiles and captures what warm-up left out; `race` makes one step more
            runs[f"{kind}, {name}"] = partial(seconds_of, run)
    taken = race(runs, setting.repeats, on_progress)
    rows = [
        {
            "step": kind,
            "tokens": sum(step.num_new),
            "seconds": {name: taken[f"{kind}, {name}"] for name in (AS_IT_RUNS, EAGER)},
        }
        for kind, step in steps.items()
    ]
    return EagerResult(arguments=setting.record(), **describe_host(model.device), rows=rows)


def engine_of(setting: Eager, model: Model, enforce_eager: bool) -> Engine:
    """Make a warm engine with room for the steps, and random numbers as its KV cache."""
    s, size = setting, setting.batch_size
    engine = Engine(
        model,
        num_blocks=blocks_of(size, s.context + 1 + s.num_drafts) + blocks_of(1, s.prompt_len),
        max_num_seqs=size + 1,
        max_num_batched_tokens=max(STEP_TOKENS, size + s.prompt_len, size * (1 + s.num_drafts)),
        enable_prefix_caching=False,
        enforce_eager=enforce_eager,
        speculative={"method": NGRAM, "num_tokens": s.num_drafts},
    )
    engine.pool.memory.normal_()
    engine.warm_up()
    return engine


def steps_of(setting: Eager, engine: Engine) -> dict[str, Step]:
    """Return steps by their names, over sequences that hold their blocks. No time depends on the values."""
    size, context, num_drafts = setting.batch_size, setting.context, setting.num_drafts
    texts = mixed_prompts(engine.model, [context + 1] * size + [setting.prompt_len])
    *seqs, prompt = (Sequence(text, SamplingParams(temperature=0)) for text in texts)
    engine.blocks.reserve({seq.seq_id: context + 1 + num_drafts for seq in seqs} | {prompt.seq_id: len(prompt)})
    for seq in seqs:
        seq.num_cached_tokens = context
    decodes = counted(size, "decode")
    return {
        decodes: Step(seqs, [1] * size),
        f"{decodes}, a prompt of {len(prompt)}": Step([*seqs, prompt], [1] * size + [len(prompt)]),
        f"{decodes} with {counted(num_drafts, 'draft')} each": Step(
            seqs, [1 + num_drafts] * size, drafts=[[0] * num_drafts] * size
        ),
    }


def run_step(engine: Engine, step: Step) -> None:
    """Compute a step, and wait for its tokens, which no sequence gets: so it can be computed again."""
    engine.runner.launch(step)
    engine.runner.wait(step)
