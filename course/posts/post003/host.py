"""Post 003: the host's share of a decode step of the engine, and the most that hiding it could gain."""

from __future__ import annotations

from statistics import median

from roseinfer.bench.host import Step, decode_steps
from roseinfer.bench.ladder import random_prompts
from roseinfer.drive import drive
from roseinfer.models import Model
from roseinfer.models.weights import prepare_weights
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.profiling import Machine, decode_floor
from roseinfer.sequence import SamplingParams, Sequence

from ..data import post_table
from ..planned import engine_of
from ..report.content import Exact, Time, judged
from ..report.setting import Setting
from ..report.template import Values

BATCH, PROMPT_LEN = 8, 32
STEPS, QUICK_STEPS = 24, 10
CPU_MODELS = ("tiny", "random:gpt2")
GPU_MODELS = ("random:gpt2", "random:qwen2.5-7b")
HARDLY = 0.05  # a gain below it is hardly one


def engines(setting: Setting) -> list[PlannedEngine]:
    """Plan one engine a model: setting.model, or else the models for this device that fit its memory."""
    return [config for config in _configs(setting) if setting.model or _fits(config)]


def too_large(setting: Setting) -> list[PlannedEngine]:
    """Plan the engines of the models that do not fit."""
    return [config for config in _configs(setting) if not (setting.model or _fits(config))]


def _configs(setting: Setting) -> list[PlannedEngine]:
    return [setting.engine(model, BATCH, PROMPT_LEN + STEPS) for model in _models(setting)]


def _models(setting: Setting) -> tuple[str, ...]:
    if setting.model or setting.quick:
        return (setting.model or "tiny",)
    return GPU_MODELS if setting.on_gpu else CPU_MODELS


def _fits(config: PlannedEngine) -> bool:
    fit = config.sizes().fit()
    return fit is None or fit[0] >= 0  # None: a device that is not here, in a dry run


def section(setting: Setting, machine: Machine) -> Values:
    rows, times = _post_rows()
    steps = post_table("003", "steps").set_index("model")
    gains = {row.Index: most_gain(row.step_ms, row.host_ms) for row in steps.itertuples()}
    largest, *_, smallest = steps.index  # of the models
    simple_gain = "hardly any" if gains[largest] - 1 < HARDLY else f"up to {gains[largest] - 1:.1%}"
    samples = {}
    for config in engines(setting):
        setting.say(f"host share of a step, {config.model}")
        taken, floor = measure(setting, config, machine)
        samples[config.model] = taken
        step, host = (median(figures) for figures in zip(*((s["step"], s["planning"]) for s in taken), strict=True))
        times.append(Time(f"step, {config.model}", "ms", None, 1e3 * step, 1e3 * floor))
        times.append(Time(f"host work, {config.model}", "ms", None, 1e3 * host))
        rows.append([f"here: {config.model}", *_bound(step, host)])
    return {
        "hardly": f"{HARDLY:.0%}",
        "batch": BATCH,
        "prompt_len": PROMPT_LEN,
        "facts": judged(
            "003",
            {
                f"what simple asynchronous scheduling gains, {largest}": simple_gain,
                "which model gains more": smallest if gains[smallest] > gains[largest] else largest,
            },
        ),
        "times": times,
        "bounds": rows,
        "samples": samples,
    }


def most_gain(step: float, host: float) -> float:
    """Compute how much faster steps could come, at the very most, if all of the host's time were hidden."""
    return step / (step - host)


def _post_rows() -> tuple[list[list[Exact]], list[Time]]:
    rows: list[list[Exact]] = []
    times = []
    for row in post_table("003", "steps").itertuples():
        name = f"{row.model} {row.dtype}"
        rows.append([f"computed from the post: {name}", *_bound(row.step_ms, row.host_ms)])
        times.append(Time(f"step, {name}", "ms", float(row.step_ms), None))
        times.append(Time(f"host work, {name}", "ms", float(row.host_ms), None))
    return rows, times


def _bound(step: float, host: float) -> tuple[str, str]:
    return f"{host / step:.1%}", f"×{most_gain(step, host):.3f}"


def measure(setting: Setting, config: PlannedEngine, machine: Machine) -> tuple[list[Step], float]:
    """Measure decode steps of the engine, part by part; return them and the middle one's floor in seconds."""
    model = setting.load(config)
    context_lens = [PROMPT_LEN + STEPS // 2] * BATCH
    floor = decode_floor(model.config, context_lens, model.dtype, machine).seconds
    prepare_weights(model)
    return engine_steps(model, config, QUICK_STEPS if setting.quick else STEPS), floor


def engine_steps(model: Model, config: PlannedEngine, steps: int) -> list[Step]:
    """Decode `steps` tokens for as many sequences as there are slots, with synchronous steps, whose parts add up."""
    engine = engine_of(config, model, enable_prefix_caching=True)
    engine.warm_up()
    params = SamplingParams(max_tokens=steps, ignore_eos=True)
    seqs = [Sequence(prompt, params) for prompt in random_prompts(model, config.max_num_seqs, PROMPT_LEN)]
    return decode_steps(lambda: list(drive(engine, seqs)), steps)
