"""The GPU report, run on the CPU with small sizes: every part, what fails in it, its files, and how they are read."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections import Counter
from dataclasses import asdict, replace

import pytest
import torch
from small_reports import COURSE, CPU, FLAT, NO_PARTS, PLAN, TINY, ForgetsTheLastToken

from roseinfer.bench import LadderResult
from roseinfer.bench.contenders import ContenderFailed, hf_contender
from roseinfer.bench.gpu_report import QUICK, Course, Size, run_report, summary
from roseinfer.bench.gpu_report.context import one_line
from roseinfer.bench.gpu_report.ladders import affordable
from roseinfer.bench.interleave import Run
from roseinfer.bench.provenance import describe_host, short_commit
from roseinfer.cli import gpu_report
from roseinfer.cli.main import main
from roseinfer.kernels.paged_reference import paged_attention_reference as flat_reference
from roseinfer.teach.measure.recorded import gpu_reports, recorded, recorded_kernels, recorded_trace
from stages import NaiveCat, PreallocGather
from stages.s07_triton_paged import paged_attention_reference


class Raises(PreallocGather):
    def append(self, seqs, step):
        raise IndexError("list index out of range")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def report(folder):
    return run_report(COURSE, PLAN, device=CPU, folder=folder, commit="0123456789abcdef")


# The whole report


@pytest.mark.needs_triton
def test_every_part_has_its_rows_and_nothing_failed(report):
    data = report.data
    assert report.failures == []
    assert {part: len(data[part]) for part in data["seconds"]} == {
        "machine": 2, "kernel_checks": 2, "flat_checks": 2, "kernel_times": 1, "tokens": 8, "graph_checks": 5,
        "launches": 2, "overlap": 1, "traces": 2, "ladders": 2,
    }  # fmt: skip
    assert [(row["dtype"], row["verdict"]) for row in data["kernel_checks"]] == [("float32", "ok"), ("bfloat16", "ok")]
    assert [(row["case"], row["dtype"], row["verdict"]) for row in data["flat_checks"]] == [
        (FLAT, "float32", "ok"), (FLAT, "bfloat16", "ok"),
    ]  # fmt: skip
    for part in ("kernel_checks", "flat_checks"):
        assert 0 < data[part][0]["max_error"] < 2e-5 < data[part][1]["max_error"]
    contenders = ("s02_prealloc_gather", "s03_select_append", "LLM, eager", "LLM")
    assert [(row["stage"], row["dtype"], row["verdict"]) for row in data["tokens"]] == [
        (name, dtype, verdict) for dtype, verdict in (("float32", "equal"), ("bfloat16", "near")) for name in contenders
    ]
    assert [(row["batch_size"], row["verdict"]) for row in data["graph_checks"]] == [(n, "ok") for n in (1, 2, 3, 2, 1)]
    assert [(row["stage"], row["batch_size"]) for row in data["launches"]] == [("engine_eager", 2), ("engine", 2)]
    assert all(0 < row["host_seconds"] < row["step_seconds"] for row in data["launches"])
    stages = ["s02_prealloc_gather", "s03_select_append", "HF generate", "HF generate, static cache"]
    for ladder, shape in zip(data["ladders"], PLAN.ladders, strict=True):
        arguments, model = ladder["arguments"], ladder["model"]
        assert (arguments["model"], model["dtype"], arguments["batch_size"]) == tuple(asdict(shape).values())
        assert [row["stage"] for row in ladder["rows"]] == stages and ladder["not_run"] == {}
        assert Counter(sample["name"] for sample in ladder["samples"]) == dict.fromkeys(stages, 1)


@pytest.mark.needs_triton
def test_bytes_of_a_launch_are_those_of_the_cached_keys_and_values(report):
    (row,) = report.data["kernel_times"]
    assert row["kv_bytes"] == 2 * 2 * 16 * 1 * 16 * 4  # K and V, sequences, tokens, KV heads, head size, fp32
    assert row["bytes_per_s"] == row["kv_bytes"] / row["seconds"]


def test_the_file_says_where_it_comes_from(report, folder):
    written = json.loads(report.path.read_text())
    assert written == json.loads(json.dumps(report.data))
    assert (written["kind"], written["format"]) == ("gpu-report", 1)
    assert written["versions"].keys() == {"python", "torch", "triton", "numba", "transformers"}
    assert written["arguments"] == json.loads(json.dumps(asdict(PLAN)))
    gpu = report.path.parent.name
    assert report.path == folder / "runs" / gpu / f"{written['date'][:10]}-{short_commit(written['commit'])}.json"
    assert gpu.strip("-") == gpu and gpu.replace("-", "").isalnum()
    for row in written["traces"]:
        file = folder / row["file"]
        assert file == folder / "traces" / gpu / f"{row['stage']}.json.gz" and file.stat().st_size == row["bytes"]


@pytest.mark.needs_triton
def test_the_summary_has_every_verdict(report):
    text = summary(report.data)
    for line in (
        "kernel checks, float32: 1 of 1, largest error",
        "flat checks, bfloat16: 1 of 1, largest error",
        "greedy tokens equal to the reference's, float32: 4 of 4 (model, stage) pairs",
        "greedy tokens that rounding explains, bfloat16: 4 of 4 (model, stage) pairs",
        "decode with graphs as without, float32: 5 of 5 steps",
        "A decode step of the engine\n",
        "HF generate, static cache",
        "KV GB/s",
        "traces: 2 stages, ",
    ):
        assert line in text
    assert "FAILED" not in text


def test_short_commit():
    assert [short_commit(c) for c in (None, "0123456789", "0123456789-dirty")] == [
        "unknown", "0123456", "0123456-dirty",
    ]  # fmt: skip


def test_what_a_report_leaves_in_a_clone_does_not_make_its_code_dirty(tmp_path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr("roseinfer.bench.provenance.ROOT", tmp_path)
    assert describe_host(CPU)["commit"] is None
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "code")
    for folder in ("runs", "traces"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "new.json").write_text("{}")
    assert len(describe_host(CPU)["commit"]) == 40
    (tmp_path / "code.py").write_text("2")
    assert describe_host(CPU)["commit"].endswith("-dirty")


# What fails is recorded, and the rest is run


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory):
    """A stage that raises, one with wrong tokens, a kernel that is wrong, and no compiler for transformers."""

    def no_compiler(*args):
        name, run = hf_contender(*args)

        def fail(on_step):
            raise ContenderFailed(f"{name} failed in generate: no compiler")

        return name, fail if "static" in name else run

    def kernel(q, *others):
        if q.dtype == torch.bfloat16:
            raise RuntimeError("no such instruction")
        return 1.01 * paged_attention_reference(q, *others)

    def flat_kernel(q, k, *others):
        if q.dtype == torch.bfloat16:
            raise RuntimeError("no such instruction")
        return flat_reference(q, 1.01 * k, *others)

    stages = [NaiveCat, Raises, ForgetsTheLastToken]
    course = Course(stages, paged_attention_reference, kernel, flat_kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("roseinfer.bench.ladder"), "hf_contender", no_compiler)
        return run_report(
            course, replace(PLAN, ladders=PLAN.ladders[:1]), device=CPU, folder=tmp_path_factory.mktemp("spoilt")
        )


def test_a_failing_stage_leaves_the_others(spoilt):
    raised = "Raises failed in decode step 0: IndexError: list index out of range"
    data = spoilt.data
    exact, half = (
        {row["stage"]: row["verdict"] for row in data["tokens"] if row["dtype"] == dtype} for dtype in PLAN.dtypes
    )
    assert (exact["s01_naive_cat"], half["s01_naive_cat"]) == ("equal", "near")
    assert exact["Raises"] == half["Raises"] == "Raises failed in generate: IndexError: list index out of range"
    assert exact["ForgetsTheLastToken"].startswith("ForgetsTheLastToken: tokens differ from the reference")
    assert half["ForgetsTheLastToken"].startswith("ForgetsTheLastToken: a token's logit is ")
    assert [row["stage"] for row in data["traces"]] == ["s01_naive_cat", "ForgetsTheLastToken"]
    (ladder,) = data["ladders"]
    assert "s01_naive_cat" in [row["stage"] for row in ladder["rows"]]
    assert ladder["not_run"]["Raises"] == raised
    assert sum("Raises" in failure for failure in spoilt.failures) == 4  # tokens in both dtypes, trace, ladder


def test_a_failing_kernel_is_a_verdict(spoilt):
    wrong, raised = [row["verdict"] for row in spoilt.data["kernel_checks"]]
    assert wrong.startswith("wrong: ") and wrong.endswith(" values are too far off")
    assert raised == "failed: RuntimeError: no such instruction"
    assert sum("kernel check" in failure for failure in spoilt.failures) == 2
    wrong, raised = [row["verdict"] for row in spoilt.data["flat_checks"]]
    assert wrong.startswith("wrong: ") and "values of k_cache are not what they have to be afterwards" in wrong
    assert raised == "failed: RuntimeError: no such instruction"
    assert sum("flat check" in failure for failure in spoilt.failures) == 2


def test_transformers_failing_is_a_note_and_no_failure(spoilt):
    (ladder,) = spoilt.data["ladders"]
    assert ladder["not_run"]["HF generate, static cache"].endswith("failed in generate: no compiler")
    assert "HF generate" in [row["stage"] for row in ladder["rows"]]
    assert any("no compiler" in note for note in spoilt.data["notes"])
    assert not any("no compiler" in failure for failure in spoilt.failures)
    assert summary(spoilt.data).count("FAILED: ") == len(spoilt.failures)


def test_a_part_that_raises_ends_only_itself(tmp_path):
    plan = replace(NO_PARTS, trace_model="random:nothing", dtypes=("float32", "int32"))
    report = run_report(COURSE, plan, device=CPU, folder=tmp_path)
    assert [row["dtype"] for row in report.data["machine"]] == ["float32"]
    assert [failure.split(":")[0] for failure in report.failures] == ["machine", "launches", "traces"]
    assert json.loads(report.path.read_text())["failures"] == report.failures


def test_one_line_keeps_both_ends_of_a_long_message():
    assert one_line(KeyError("a\n b")) == "KeyError: 'a\\n b'"
    text = one_line(f"compiling\n{'x' * 1000}\nundefined symbol")
    assert text.startswith("compiling xx") and "[... 627 characters ...]" in text and text.endswith("undefined symbol")


# Time


def test_the_first_size_that_fits_is_taken():
    sizes = (Size(100, 3), Size(10, 3), Size(10, 1))
    runs = [
        Run(1.0, (9.0, 0.5), []),
        Run(2.0, (9.0, 0.1), []),
    ]  # 3 s of prefill, 0.6 s a step; the cold one is left out
    assert affordable(runs, sizes, 5 * (3 + 60)) == Size(100, 3)
    assert affordable(runs, sizes, 5 * (3 + 60) - 1) == Size(10, 3)
    assert affordable(runs, sizes, 5 * (3 + 6) - 1) == Size(10, 1)
    assert affordable(runs, sizes, 0) == Size(10, 1)


def test_what_there_is_no_time_for_is_named(tmp_path):
    plan = replace(
        PLAN,
        seconds=0,
        kernel_check_seconds=-1,
        flat_check_seconds=-1,
        token_check_seconds=-1,
        graph_check_models=(),
        launch_batch_sizes=(),
        timed_shapes=(),
        trace_steps=1,
    )
    report = run_report(COURSE, plan, device=CPU, folder=tmp_path)
    assert report.data["kernel_checks"] == report.data["tokens"] == report.data["ladders"] == []
    assert report.data["notes"] == [
        "kernel checks: 1 of 1 shapes not run, out of time",
        "flat checks: 1 of 1 cases not run, out of time",
        "tokens: 2 of 2 models and dtypes not run, out of time",
        "ladders: 2 of 2 not run, out of time",
    ]


def test_without_time_to_compile_there_is_no_static_cache(tmp_path):
    plan = replace(NO_PARTS, ladders=PLAN.ladders[:1], static_cache_seconds=10_000)
    (ladder,) = run_report(COURSE, plan, device=CPU, folder=tmp_path).data["ladders"]
    assert [row["stage"] for row in ladder["rows"]][-1] == "HF generate"
    assert ladder["not_run"]["HF generate, static cache"].endswith("compiling takes 10000")


# Traces


def test_traces_are_shortened_to_stay_within_their_limit(tmp_path, report, folder):
    sizes = {row["stage"]: row["bytes"] for row in report.data["traces"]}
    shorter = run_report(
        COURSE, replace(NO_PARTS, trace_steps=2, trace_bytes=sum(sizes.values()) * 3 // 4), device=CPU, folder=tmp_path
    )
    assert [row["steps"] for row in shorter.data["traces"]] == [1, 1] and shorter.failures == []
    assert shorter.data["notes"][0].startswith("traces: 1 steps, not 2, to stay within ")
    name = shorter.data["traces"][0]["stage"]
    assert recorded_trace(name, tmp_path).count("roseinfer.decode_step_sessions.total") == 1


def test_traces_that_cannot_fit_are_not_written(tmp_path):
    report = run_report(COURSE, replace(NO_PARTS, trace_bytes=100), device=CPU, folder=tmp_path)
    assert report.data["traces"] == [] and not list(tmp_path.rglob("*.gz"))
    assert "allowed: 100; none is kept" in report.failures[0]


def test_a_report_over_the_limit_fails_and_is_kept(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("roseinfer.bench.gpu_report.run.MOST_BYTES", 1000)
    report = run_report(COURSE, NO_PARTS, device=CPU, folder=tmp_path)
    assert "allowed: 1,000" in report.failures[0]
    assert json.loads(report.path.read_text())["failures"] == report.failures


# Reading reports


def test_recorded_shows_the_ladders_of_a_model(report, folder):
    data = report.data
    name = f"Recorded on {data['device']}, {data['date'][:10]}, commit {short_commit(data['commit'])}"
    both = recorded(TINY, folder=folder)
    assert len(both.cards) == 2 and all(name in card and "not measured here" in card for card in both.cards)
    one = recorded(TINY, batch_size=2, folder=folder)
    assert len(one.cards) == 1
    assert LadderResult(**data["ladders"][0])._repr_mimebundle_()["text/html"] in one.to_html()
    absent = recorded("random:gpt2", 8, folder)
    assert absent.cards == [] and "once there is a GPU report" in absent.to_html()


@pytest.mark.needs_triton
def test_plain_text_does_not_depend_on_which_reports_there_are(report, tmp_path):
    without = repr(recorded(TINY, folder=tmp_path)), repr(recorded_kernels(tmp_path))
    assert without == (
        f"from the GPU reports in data/runs, where there are any: ladders of {TINY}",
        "from the GPU reports in data/runs, where there are any: times of the paged attention kernel",
    )
    for gpu in ("one", "other"):
        (tmp_path / "runs" / gpu).mkdir(parents=True)
        (tmp_path / "runs" / gpu / "2026-01-31-0123456.json").write_bytes(report.path.read_bytes())
        assert (repr(recorded(TINY, folder=tmp_path)), repr(recorded_kernels(tmp_path))) == without
    assert len(gpu_reports(tmp_path)) == len(recorded_kernels(tmp_path).cards) == 2


@pytest.mark.needs_triton
def test_recorded_kernels_show_times_and_bandwidth(report, folder):
    shown = recorded_kernels(folder).to_html()
    for text in ("Recorded on ", "KV GB/s", "of read bandwidth", "float32", "4,096"):
        assert text in shown


def test_the_newest_trace_of_a_stage(report, folder, tmp_path):
    trace = recorded_trace(PreallocGather, folder)
    assert trace.metadata["stage"] == "s02_prealloc_gather" and trace.metadata["steps"] == 2
    spans = trace.spans().df
    assert spans.set_index("name").loc["roseinfer.decode_step_sessions.total", "n"] == 2
    assert recorded_trace("s07_triton_paged", folder) is None
    for gpu, when in (("a", "2026-01-31"), ("b", "2026-02-28"), ("c", "2025-12-31")):
        trace.data["roseinfer"]["recorded_at"] = when
        (tmp_path / "traces" / gpu).mkdir(parents=True)
        trace.save(tmp_path / "traces" / gpu / "s02_prealloc_gather.json.gz")
    assert recorded_trace(PreallocGather, tmp_path).metadata["recorded_at"] == "2026-02-28"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "data/runs/h200/run.json is not JSON"),
        ("[]", "data/runs/h200/run.json is no report as `make gpu-report` writes it"),
        ('{"kind": "gpu-report", "format": 2}', r"kind 'gpu-report', format 1"),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, content: str, message: str):
    (tmp_path / "runs" / "h200").mkdir(parents=True)
    (tmp_path / "runs" / "h200" / "run.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        recorded(folder=tmp_path)


# The command


def test_without_a_gpu_it_says_what_it_needs(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["gpu-report", "--quick"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: gpu-report needs an NVIDIA GPU, torch for CUDA, and Triton 3.6 to 3.9: torch ")


@pytest.mark.parametrize(("mode", "message"), [("interpret", "interpreter was asked for"), ("compile", "no Triton")])
def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch, mode: str, message: str):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("roseinfer.kernels.triton_mode.MODE", mode)
    monkeypatch.setattr("roseinfer.kernels.triton_mode.unavailable", lambda *device: "no Triton")
    assert message in gpu_report.what_is_missing()


@pytest.mark.parametrize(("failures", "status"), [([], 0), (["s01: wrong"], 1)], ids=["fine", "failed"])
def test_the_exit_status_says_whether_anything_failed(capsys, monkeypatch, report, failures: list, status: int):
    asked = []

    def finished(course, plan, **options):
        asked.append((len(course.stages), plan, str(options["device"]), options["folder"], options["commit"]))
        assert options["isolated"]
        options["say"]("machine")
        return replace(report, data=report.data | {"failures": failures})

    monkeypatch.setattr(gpu_report, "what_is_missing", lambda: None)
    monkeypatch.setattr("roseinfer.bench.gpu_report.run_report", finished)
    assert main(["gpu-report", "--quick", "--commit", "abc"]) == status
    out, err = capsys.readouterr()
    assert asked == [(len(gpu_report.course().stages), QUICK, "cuda:0", gpu_report.DATA, "abc")]
    assert err == "    0 s  machine\n" and out.endswith(f"written: {report.path}\n")
    assert ("FAILED: s01: wrong" in out) == bool(failures)
