"""Post 001 reproduced: exact facts against the post's data and against rules, host and device told apart."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from made_up import require_whole, section, section_of
from small_posts import CACHED, STEPS, edit_facts, setting

from course.posts import post001
from course.posts.data import post_facts
from course.posts.post001 import engines, measure, reproduce
from course.posts.post001.config import config_lesson
from course.posts.post001.measure import Batch, Measurements, Profile, profile, tokens_per_second
from course.posts.post001.steps import phases, residual
from course.posts.post001.throughput import throughput
from course.posts.report import PostReport, Section
from course.posts.report.template import left_out, templates
from roseinfer.bench.contenders import StageContender
from roseinfer.models import empty_model, model_config
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.profiling import Machine, Trace, decode_floor
from roseinfer.profiling.span_times import TimedSpan
from roseinfer.profiling.traces.phases import PHASES, device_phases, host_phases
from stages import SelectAppend, VectorizedGather

pytestmark = pytest.mark.slow

POST = "001"
TINY = "random:tiny-qwen2"
TINY_BYTES = PlannedEngine(model=TINY, num_blocks=1).sizes().loaded_bytes
RESIDUAL, SPEEDS = "The time without a label", "Tokens a second, and what is saturated"


def time_of(section: Section, what: str):
    return next(time for time in section.times if time.what == what)


# What runs.


def test_the_report_is_whole(report):
    at_each = (
        "copy_ in write_decode_kv",
        "index_put_ in write_decode_kv",
        "calls that index the cache in gather_batch_kv",
    )
    explained = {f"{what}, batch {size}" for what in at_each for size in (1, 4, 8)}
    require_whole(report, explained)


def test_the_run_is_what_the_facts_say(report: PostReport):
    assert report.arguments == {
        "device": "cpu",
        "quick": True,
        "model": TINY,
        "dtype": "float32",
        "stage": VectorizedGather.name,
        "batch_sizes": post_facts("001")["batch_sizes"],
        "prompt_len": CACHED,
        "num_steps": STEPS,
        "repeats": 1,
    }
    runs = section(report, "Tokens a second").samples["runs"]
    names = [f"{VectorizedGather.name}, batch {size}" for size in (1, 4, 8)]
    assert [run["name"] for run in runs] == [*names, "HF generate"]
    assert {len(run["step_seconds"]) for run in runs} == {STEPS - 1}
    assert [run["decode_tokens"] for run in runs] == [size * (STEPS - 1) for size in (1, 4, 8, 8)]
    for samples in section(report, "Three labelled").samples.values():
        assert samples["device_ms"] is None
        assert {name: len(ms) for name, ms in samples["host_ms"].items()} == dict.fromkeys([*PHASES, "step"], STEPS - 1)


@pytest.mark.parametrize(
    ("device", "options", "model", "dtype"),
    [
        ("cpu", {}, "random:qwen2.5-0.5b", "float32"),
        ("cuda", {}, "random:qwen2.5-7b", "float16"),
        ("cpu", {"quick": True}, TINY, "float32"),
        ("cuda", {"quick": True}, TINY, "float16"),
        ("cpu", {"quick": True, "model": "tiny"}, "tiny", "float32"),
    ],
    ids=["cpu", "gpu", "quick on a cpu", "quick on a gpu", "named"],
)
def test_the_model_for_a_device(device, options, model, dtype):
    configs = engines(setting("001", device, **{"quick": False, **options}))
    facts = post_facts("001")
    longest = facts["python_gather"]["cached_tokens"] + facts["num_steps"]
    assert [config.max_num_seqs for config in configs] == facts["batch_sizes"]
    assert {(c.model, c.dtype, c.device, c.max_model_len) for c in configs} == {(model, dtype, device, longest)}
    for config in configs:
        assert config.num_blocks == config.max_num_seqs * -(-(longest - 1) // config.block_size)


def test_a_model_with_too_few_positions_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    edit_facts(tmp_path, monkeypatch, num_steps=model_config(TINY).max_model_len)
    with pytest.raises(ValueError, match=r"max_model_len=\d+ is more positions than random:tiny-qwen2 has"):
        reproduce(setting("001"))


# Exact facts.


def test_every_figure_of_the_post_is_there(report: PostReport):
    """Those that it states without a mark, those that were computed with one."""
    times = {time.what: time for section in report.sections for time in section.times}
    stated = {
        "the three labels, all 5 steps, batch 1": 509,
        "the three labels, all 5 steps, batch 4": 535,
        "the three labels, all 5 steps, batch 8": 534,
        "share of gather_batch_kv, batch 8": 1.7,
        "share of write_decode_kv, batch 8": 1,
        "aten::cat, all 5 steps, batch 8": 9.17,
        "aten::cat, batch 8": 0.32,
        "step, batch 8": 22.2,
        "device labels, batch 8": 18.4,
        "step less device labels, batch 8": 3.8,
        "step of HF generate, batch 8": 19.6,
        "batch 8 as a share of HF generate": 88.4,
        "batch 4 over batch 1": 3.6,
        "batch 8 over batch 4": 1.86,
    }
    assert {what: times[what].post for what in stated} == pytest.approx(stated)
    assert all(times[what].source is None for what in stated)
    marked = {what for what, time in times.items() if time.source}
    at_1_and_4 = {f"{what}, batch {n}" for what in ("step", "device labels", "step less device labels") for n in (1, 4)}
    reading = {"reading all weights once", "reading those that a step needs"}
    assert marked == at_1_and_4 | reading | {f"model_forward over that reading, batch {n}" for n in (1, 4, 8)}
    assert times["step of HF generate, batch 8"].here == pytest.approx(8e3 / times["HF generate, batch 8"].here)


def test_cats_and_labels_of_all_steps(report: PostReport):
    labels, rest = section(report, "Three labelled"), section(report, "The time without")
    host = labels.samples["batch 8"]["host_ms"]
    total = sum(sum(host[phase]) for phase in PHASES)
    assert time_of(labels, "the three labels, all 5 steps, batch 8").here == pytest.approx(total)
    cat, every = (time_of(rest, what).here for what in ("aten::cat, batch 8", "aten::cat, all 5 steps, batch 8"))
    assert 0 < cat < sum(host["step"]) and every > 0


def test_single_runs_judge_nothing(report: PostReport):
    speeds = section(report, "Tokens a second")
    assert "A single run has no range" in " ".join(speeds.markdown.split())
    assert {row[3:] for row in map(tuple, speeds.grids[0].rows)} == {(None, None)}


@pytest.fixture(scope="module")
def other_report(tmp_path_factory) -> PostReport:
    """A run of SelectAppend, where transformers' weights have no room beside the engine's."""
    with pytest.MonkeyPatch.context() as patch:
        edit_facts(tmp_path_factory.mktemp("other"), patch, num_steps=5)
        patch.setattr(post001, "available_bytes", lambda device: TINY_BYTES - 1)
        return reproduce(setting("001", stages={"s04": SelectAppend}))


def test_a_stage_that_writes_sequence_by_sequence_is_different(other_report: PostReport):
    """SelectAppend starts a copy for K and one for V of every layer and sequence, as the post's engine did."""
    layers = model_config(TINY).num_layers
    facts = {fact.what: fact for fact in section(other_report, "The time").facts}
    for size in (1, 4, 8):
        copies = facts[f"copy_ in write_decode_kv, batch {size}"]
        assert (copies.here, copies.verdict) == (2 * layers * size, "different")


def test_transformers_is_left_out_when_its_weights_have_no_room(other_report: PostReport):
    assert f"{TINY_BYTES:,} bytes for a second copy" in other_report.not_run[0].needs
    speeds = section(other_report, "Tokens a second")
    for what in ("HF generate, batch 8", "batch 8 as a share of HF generate"):
        assert time_of(speeds, what).here is None
    assert len(speeds.grids[0].rows) == len(speeds.samples["runs"]) == 3


# Host and device.


def event(name, start, dur, cat, tid=1, **args):
    return {"ph": "X", "name": name, "ts": start, "dur": dur, "cat": cat, "tid": tid, "pid": 0, "args": args}


def gpu_step(step, start, forward):
    """In us, on the host: 100, of it gather 20, forward 30, append 18. On the device: gather 5, `forward`, append 4,
    and 1 without a label."""
    return [
        event(f"ProfilerStep#{step}", start, 100, "user_annotation"),
        event(PHASES["gather"], start + 5, 20, "user_annotation"),
        event(PHASES["forward"], start + 30, 30, "user_annotation"),
        event(PHASES["append"], start + 62, 18, "user_annotation"),
        event("aten::cat", start + 31, 4, "cpu_op"),
        event("cudaLaunchKernel", start + 32, 1, "cuda_runtime", correlation=step),
        event("aten::index_put_", start + 64, 4, "cpu_op"),
        event("aten::_index_put_impl_", start + 64.5, 3, "cpu_op"),
        event("aten::copy_", start + 65, 1, "cpu_op"),
        event("aten::copy_", start + 70, 1, "cpu_op"),
        event(PHASES["gather"], start + 10, 12, "gpu_user_annotation", tid=7),
        event("void gather_kernel<2>(int)", start + 10, 2, "kernel", tid=7),
        event("void (anonymous namespace)::gather_kernel<2>(int)", start + 19, 3, "kernel", tid=7, correlation=step),
        event(PHASES["forward"], start + 35, forward, "gpu_user_annotation", tid=7),
        event("gemm", start + 35, forward, "kernel", tid=7),
        event("copy elsewhere", start + 40, 1, "gpu_memcpy", tid=9),
        event(PHASES["append"], start + 80, 10, "gpu_user_annotation", tid=7),
        event("copy", start + 80, 4, "gpu_memcpy", tid=7),
    ]


@pytest.fixture
def gpu_trace() -> Trace:
    return Trace({"traceEvents": [*gpu_step(0, 1000, 40), *gpu_step(1, 2000, 42)], "roseinfer": {"steps": 2}})


HOST = {"gather": [0.02] * 2, "forward": [0.03] * 2, "append": [0.018] * 2, "step": [0.1] * 2}


def test_host_phases_of_each_step():
    spans = [TimedSpan(PHASES[phase], 1.0, 1.0 + 1e-3 * ms) for phase in PHASES for ms in HOST[phase]]
    assert host_phases(spans, [1e-4, 1e-4]) == {phase: pytest.approx(ms) for phase, ms in HOST.items()}


def test_a_profile_keeps_the_device_apart_and_counts_a_phases_own_calls(gpu_trace: Trace, small, monkeypatch):
    asked = {}
    monkeypatch.setattr(measure, "capture", lambda step, **options: asked.update(options) or gpu_trace)
    entrant = StageContender(VectorizedGather, small, [[1, 2]], 3)
    profiled = profile(entrant, 2)
    calls = profiled.calls
    assert profiled.device == device_phases(gpu_trace)
    assert profiled.cat_ms == pytest.approx([0.003, 0.003])  # of the device, the launch takes the host 0.001 ms
    assert {name: round(share, 3) for name, share in profiled.kernels.items()} == {
        "gemm": 0.804,
        "gather_kernel<2>": 0.098,
        "copy": 0.078,
    }
    assert asked == {"steps": 2, "warmup": 1}
    own = {"aten::index_put_": 1, "aten::_index_put_impl_": 1, "aten::copy_": 1}
    assert calls["append"] == own, "the copy of index_put_'s indices is left out"
    assert not calls["gather"]


@pytest.fixture
def measured(gpu_trace: Trace):
    """measured(device=None): batch 1, 4 and 8, 200, 250 and 400 us a step unprofiled; transformers at 500 us."""
    sizes = PlannedEngine(model=TINY, num_blocks=1).sizes()
    machine = Machine("card", "cuda", torch.float32, 1e9, 1e9, samples={})

    def runs(size, seconds):
        return [{"decode_tokens": 3 * size, "step_seconds": [seconds, 9.0, seconds]}]

    def batch(size, seconds, device):
        calls = {phase: Counter() for phase in PHASES}
        floor = decode_floor(sizes.shape, [CACHED] * size, torch.float32, machine)
        host = {name: [1e3 * seconds * ms / HOST["step"][0] for ms in each] for name, each in HOST.items()}
        kernels = {} if device is None else {"gemm": 0.9}
        return Batch(size, host, Profile(device, calls, [0.001, 0.001, 0.004], kernels), runs(size, seconds), floor)

    def measurements(device=None):
        batches = [batch(1, 200e-6, device), batch(4, 250e-6, device), batch(8, 400e-6, device)]
        return Measurements("stage", sizes, CACHED, machine, batches, runs(8, 500e-6))

    return measurements


def test_the_residual_is_wall_time_less_labels_of_the_host_or_of_the_device(gpu_trace: Trace, measured):
    of_device = section_of("001", RESIDUAL, residual(measured(device_phases(gpu_trace))))
    here = {time.what.removesuffix(", batch 8"): time.here for time in of_device.times if "batch 8" in time.what}
    assert here == pytest.approx(
        {
            "step": 0.4,
            "device labels": 0.05,
            "step less device labels": 0.35,
            "host labels": 4 * 0.068,
            "step less host labels": 4 * 0.032,
            "aten::cat, all 29 steps": 29 * 0.002,
            "aten::cat": 0.001,
        }
    )
    on_host = section_of("001", RESIDUAL, residual(measured()))
    assert time_of(on_host, "device labels, batch 8").here is None
    assert time_of(on_host, "step less device labels, batch 8").here is None
    assert time_of(on_host, "host labels, batch 8").here == pytest.approx(4 * 0.068)
    assert "the wait for the device" in of_device.markdown
    assert "the wait for the device" not in on_host.markdown


def test_phases_are_the_devices_where_there_is_one(gpu_trace: Trace, measured):
    for device, forward, share in ((device_phases(gpu_trace), 0.041, 100 * 41 / 50), (None, 2 * 0.03, 100 * 30 / 68)):
        section = section_of("001", "Three labelled phases of a decode step", phases(measured(device)))
        assert time_of(section, "model_forward, batch 1").here == pytest.approx(forward)
        assert time_of(section, "share of model_forward, batch 1").here == pytest.approx(share)
        assert time_of(section, "model_forward, batch 1").post == 17.274
        assert ("times of the device" in section.markdown) == (device is not None)
        assert [list(grid.rows) for grid in section.grids[2:]] == (
            [[(size, "gemm", "90.0%") for size in (1, 4, 8)]] if device else []
        )


# Throughput.


def test_tokens_a_second_go_by_the_median_step(measured):
    assert tokens_per_second([{"decode_tokens": 24, "step_seconds": [0.5, 9.0, 0.5]}]) == [16]
    section = section_of("001", SPEEDS, throughput(measured(), PlannedEngine(model=TINY, num_blocks=1).sizes()))
    here = {time.what: time.here for time in section.times if time.unit == "tok/s"}
    assert here == pytest.approx({"batch 1": 5000, "batch 4": 16000, "batch 8": 20000, "HF generate, batch 8": 16000})
    assert time_of(section, "batch 8 as a share of HF generate").here == pytest.approx(125)
    assert "takes 2.00 times as long" in " ".join(section.markdown.split())


def test_the_posts_forward_is_near_the_reading_of_its_weights(measured):
    theirs = PlannedEngine(model="random:qwen2.5-7b", num_blocks=1, dtype="float16").sizes()
    section = section_of("001", SPEEDS, throughput(measured(), theirs))
    weights = sum(p.numel() for p in empty_model(theirs.shape).parameters())
    assert time_of(section, "reading all weights once").post == pytest.approx(1e3 * 2 * weights / 1008e9, abs=0.006)
    embedding = theirs.shape.vocab_size * theirs.shape.hidden_size
    needed = 1e3 * 2 * (weights - embedding + theirs.shape.hidden_size) / 1008e9
    assert time_of(section, "reading those that a step needs").post == pytest.approx(needed, abs=0.006)
    assert time_of(section, "model_forward over that reading, batch 8").post == pytest.approx(17.89 / needed, abs=0.006)
    card = next(grid for grid in section.grids if "RTX 4090" in grid.title)
    for _, reading, arithmetic, forward in card.rows:
        assert 10 * arithmetic < reading < forward < 1.4 * reading


# The rest of the report.


def test_not_run_says_what_it_needs(report: PostReport, gpu_trace: Trace, measured):
    weights = 2 * sum(p.numel() for p in empty_model(model_config("random:qwen2.5-7b")).parameters())
    parts = {part.what: part.needs for part in report.not_run}
    assert f"{weights:,} of weights" in parts["the post's shape, random:qwen2.5-7b in float16"]
    assert "gpu_user_annotation" in parts["device time of the labels, which is what the post adds up"]
    assert len(parts) == len(report.not_run) == 6

    theirs = PlannedEngine(model="random:qwen2.5-7b", num_blocks=1, dtype="float16", device="cuda").sizes()
    several = [SimpleNamespace(runs=[{}, {}])]
    m = SimpleNamespace(has_device_times=True, batches=several)
    on_gpu = {"about": post_facts("001"), "m": m, "theirs": theirs, "missing_room": None, "is_the_posts": True}
    assert {part.what for part in left_out(templates("001")[-1], on_gpu)} == set(list(parts)[4:])
    assert all("GPU" in needs and "RTX 4090" in needs for needs in (list(parts.values())[i] for i in (0, 2)))


def test_who_refuses_the_posts_argument():
    answers = [answer for _, answer in config_lesson()["tried"]]
    assert answers[0].startswith("ValueError: PlannedEngine has no argument 'max_num_blocks' (nearest: num_blocks)")
    assert [answer.split(":")[0] for answer in answers[1:]] == ["TypeError", "TypeError", "accepted", "AttributeError"]
