"""Measured steps of the real engine, to which a cost is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from roseinfer.arguments import require_count
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.sequence import SamplingParams, Sequence

from .cost import StepSample
from .replica import EngineSetting
from .work import work_of

# (sequences, tokens of each prompt): prompts that are computed, the same under a budget that cuts them, and prompts
# that are not, for many tokens in the cache at no cost.
PROMPTS = ((1, 16), (1, 400), (4, 64), (16, 16), (16, 64), (64, 32), (16, 250))
CUT = ((2, 400), (24, 40))
CUT_BUDGET = 96
CACHED = ((1, 200), (2, 400), (4, 100), (8, 400), (16, 170), (32, 50), (32, 300), (48, 170), (64, 90), (64, 170))
POOL_TOKENS = 12288
JOINING = (0, 24, 160)  # tokens of prompts that join those that decode, one at a time; 0: none does
STEPS = 5  # after each of them
FEW, STEPS_OF_FEW = 8, 10  # the first steps after other work are slower, and few sequences decode for long between

Shape = tuple[Engine, int, int, bool]  # the engine, sequences, tokens of each prompt, and whether these are computed


def step_samples(
    model: Model,
    *,
    max_num_seqs: int = 64,
    block_size: int = 64,
    repeats: int = 5,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[StepSample]:
    """Measure steps of the engine in seeded shapes: prompts alone, decodes alone, prompts and chunks that join decodes.

    Each round measures every shape in turn, and begins with another one; one round before is for warm-up. Raises
    ValueError for a count below 1.
    """
    require_count("max_num_seqs", max_num_seqs, at_least=1)
    require_count("repeats", repeats, at_least=1)
    rng, samples = Random(seed), []
    shapes = {f"steps of shape {i}": shape for i, shape in enumerate(shapes_of(model, max_num_seqs, block_size), 1)}
    progress = Progress(on_progress, dict.fromkeys(shapes, 1 + repeats), len(shapes) * (1 + repeats))
    for repeat in range(-1, repeats):
        for i in range(len(shapes)):
            name = [*shapes][(repeat + i) % len(shapes)]
            progress.begin("warm-up" if repeat < 0 else f"round {repeat + 1}", name, repeat=repeat)
            steps = list(steps_of(*shapes[name], rng))
            samples += steps if repeat >= 0 else []
    return samples


def shapes_of(model: Model, max_num_seqs: int, block_size: int) -> list[Shape]:
    """List what is measured, on two engines: one has a budget that cuts prompts."""
    longest = model.config.max_model_len

    def engine(budget: int | None) -> Engine:
        setting = EngineSetting(
            num_blocks=-(-POOL_TOKENS // block_size) + max_num_seqs,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_model_len=longest,
            max_num_batched_tokens=budget,
        )
        built = real_engine(model, setting)
        built.pool.memory.fill_(0.01)  # pages that were never written share one, which a cache holds
        return built

    whole, cut = engine(None), engine(max(CUT_BUDGET, max_num_seqs))
    most = longest - len(JOINING) * STEPS_OF_FEW - 1
    return [
        (used, min(num_seqs, max_num_seqs), min(prompt_len, most), is_computed)
        for used, is_computed, sizes in ((whole, True, PROMPTS), (cut, True, CUT), (whole, False, CACHED))
        for num_seqs, prompt_len in sizes
    ]


def steps_of(engine: Engine, num_seqs: int, prompt_len: int, is_computed: bool, rng: Random) -> Iterator[StepSample]:
    """Take the steps of a shape one by one; its sequences have left the engine afterwards."""
    seqs: list[Sequence] = []
    longest = engine.max_model_len

    def add(length: int) -> None:
        token_ids = rng.choices(range(engine.model.config.vocab_size), k=length)
        seqs.append(Sequence(token_ids, SamplingParams(max_tokens=longest - length, ignore_eos=True)))
        engine.add(seqs[-1])

    for _ in range(num_seqs):
        add(prompt_len)
    while any(not seq.output_ids for seq in seqs):
        if is_computed:
            yield sampled_step(engine)
        else:
            skip_step(engine)
    for length in JOINING:
        if length and len(seqs) < engine.scheduler.max_num_seqs:
            add(min(length, longest - 1))
        for _ in range(STEPS_OF_FEW if num_seqs <= FEW else STEPS):
            yield sampled_step(engine)
    for seq in seqs:
        if seq in engine.scheduler:
            engine.abort(seq)


def sampled_step(engine: Engine) -> StepSample:
    """Take a step; return its work, and how long it took."""
    step = engine.launch()
    assert step, "steps take turns, and there is work"
    work = work_of(step.seqs, step.num_new)
    engine.commit(step)
    at = engine.metrics.history[-1]
    host = at.inference_begin - at.scheduled + at.finish - at.inference_end
    return StepSample(work, host, at.inference_end - at.inference_begin)


def skip_step(engine: Engine) -> None:
    """Do all of a step but the model: its tokens count as cached, whatever the pool has in their places."""
    step = engine.scheduler.schedule()
    assert step, "there is work"
    engine.scheduler.commit(step, [0] * len(step.chosen))


def real_engine(model: Model, setting: EngineSetting) -> Engine:
    """Make the engine of a setting, warmed up as LLM warms it."""
    longest = min(setting.max_model_len, model.config.max_model_len)
    engine = Engine(model, **setting.settings() | {"max_model_len": longest})
    engine.warm_up()
    return engine
