"""Post 003: the host's share of a decode step, and the most that hiding it behind the device can gain."""

from __future__ import annotations

from dataclasses import asdict

from roseinfer.engine.config import EngineConfig
from roseinfer.profiling import Machine, decode_floor
from roseinfer.stage import Stage

from ..data import post_table
from ..report.content import Exact, Grid, NotRun, Section, Time
from ..report.setting import Setting
from .measure import HostShare, host_shares, most_gain

DENSE = "s04"
BATCH, PROMPT_LEN = 8, 32
STEPS, QUICK_STEPS = 20, 8
CPU_MODELS = ("tiny", "random:gpt2")
GPU_MODELS = ("random:gpt2", "random:qwen2.5-7b")


def engines(setting: Setting) -> list[EngineConfig]:
    """One a model: setting.model, or else the models for this device that fit its memory."""
    return [config for config in _configs(setting) if setting.model or _fits(config)]


def left_out(setting: Setting) -> list[NotRun]:
    """Models that do not fit, and what they need."""
    too_large = [config for config in _configs(setting) if not (setting.model or _fits(config))]
    return [
        NotRun(f"host work in a step of {config.model}", f"{config.sizes().total_bytes:,} bytes on {config.device}")
        for config in too_large
    ]


def _configs(setting: Setting) -> list[EngineConfig]:
    return [setting.engine(model, BATCH, PROMPT_LEN + STEPS + 2) for model in _models(setting)]


def _models(setting: Setting) -> tuple[str, ...]:
    if setting.model or setting.quick:
        return (setting.model or "tiny",)
    return GPU_MODELS if setting.on_gpu else CPU_MODELS


def _fits(config: EngineConfig) -> bool:
    fit = config.sizes().fit()
    return fit is None or fit[0] >= 0  # None: a device that is not here, in a dry run


def stages(setting: Setting) -> list[type[Stage]]:
    """The newest dense stage, and the newest of all whose times say something on this device."""
    timed = [stage for _, stage in sorted(setting.stages.items()) if not stage.why_untimed(setting.device)]
    return [setting.stages[DENSE], timed[-1]]


def section(setting: Setting, machine: Machine) -> Section:
    rows, times = _post_rows()
    samples = {}
    for config in engines(setting):
        setting.say(f"host share of a step, {config.model}")
        shares, floor = measure(setting, config, machine)
        samples[config.model] = [asdict(share) for share in shares]
        for share in shares:
            name = f"{config.model}, {share.stage}"
            times.append(Time(f"step, {name}", "ms", None, 1e3 * share.step, 1e3 * floor))
            times.append(Time(f"host work, {name}", "ms", None, 1e3 * share.host))
            rows.append([f"here: {name}", *_bound(share.step, share.host)])
    return Section(
        "Host work in a step, and what hiding it could gain",
        [
            "The post's host work is scheduling and the work before and after the model. If all of it ran while the "
            "device computes, steps could come at most step / (step - host) times as fast. That is reckoned below from "
            "the post's own figures, and explains why its simple asynchronous scheduling hardly gains anything. The "
            "bound grows as steps get shorter: with a smaller model, or fewer tokens a step.",
            f"Here host work is all of a step outside of the model's forward: tables or gather, append and sampling. "
            f"Batch {BATCH}, prompts of {PROMPT_LEN} tokens; medians of interleaved steps, timed without a profiler.",
            "A gather counts as host work here, although on a GPU the device copies what the host asks for. So a dense "
            "stage's bound is higher than hiding alone could reach.",
            _who_computes(setting),
        ],
        times=times,
        grids=[Grid("The most that hiding all host work could gain", ["step", "host's share", "at most"], rows)],
        samples=samples,
    )


def _who_computes(setting: Setting) -> str:
    if setting.on_gpu:
        return "The forward is timed from an idle device to an idle one, so the device's time lies inside it."
    return (
        "On this machine the host and the device are the same cores, so nothing can be hidden behind anything. The "
        "bound is what a device of its own, as fast as these cores, would leave to gain."
    )


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


def measure(setting: Setting, config: EngineConfig, machine: Machine) -> tuple[list[HostShare], float]:
    """The host's share of each stage's step, and the floor of the middle step in seconds."""
    model = setting.load(config)
    steps = QUICK_STEPS if setting.quick else STEPS
    shares = host_shares(stages(setting), model, config, prompt_len=PROMPT_LEN, steps=steps)
    context_lens = [PROMPT_LEN + 2 + steps // 2] * BATCH
    return shares, decode_floor(model.config, context_lens, model.dtype, machine).seconds
