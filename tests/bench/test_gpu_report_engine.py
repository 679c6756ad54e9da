"""What a GPU report says of the engine: graphs against eager decode, launches, and tokens that rounding explains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from small_reports import CPU, TINY, ForgetsTheLastToken

from roseinfer.bench.gpu_report import graph_checks, tokens
from roseinfer.bench.gpu_report.launches import launch_counts
from roseinfer.bench.ladder import mixed_prompts
from roseinfer.cli import gpu_report
from roseinfer.engine import batch
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.decode_graphs import sizes_up_to
from roseinfer.graphs import RecordedGraph
from roseinfer.profiling import Trace
from stages import VectorizedGather

MOST = 5  # graphs of 1, 2, 4 and 5 rows


class AsOnAGpu(EngineStage):
    """Every step is a graph's, and batches are filled up."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.runner.graphs.sizes, self.runner.graphs.capture_after = sizes_up_to(self.max_num_seqs), 1


class WrongToken(AsOnAGpu):
    def next_tokens(self, seqs):
        tokens = super().next_tokens(seqs)
        return [*tokens[:-1], (tokens[-1] + 1) % self.config.vocab_size] if len(seqs) == 3 else tokens


class Scribbles(AsOnAGpu):
    """One bit, in a layer, of a slot that nobody has."""

    def next_tokens(self, seqs):
        if len(seqs) == 2:
            self.runner.pool.memory.view(torch.int32)[1, 1, -2, 0, 5, 0] ^= 1
        return super().next_tokens(seqs)


@pytest.fixture(scope="module")
def model():
    return tokens.checked_model(TINY, CPU, torch.float32)


def steps(model, monkeypatch: pytest.MonkeyPatch, engine: type[EngineStage]) -> list[dict]:
    monkeypatch.setattr(graph_checks, "EngineStage", engine)
    pair = graph_checks.Pair(model, MOST)
    found = [pair.step(slice(n)) for n in range(1, MOST + 1)] + [pair.step(slice(n, MOST)) for n in range(1, MOST)]
    graphs = pair.captured.runner.graphs.graphs
    assert sorted(graphs) == [1, 2, 4, 5] and all(isinstance(graph, RecordedGraph) for graph in graphs.values())
    assert [step["batch_size"] for step in found] == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    return found


def test_graphs_decode_as_without_them(model, monkeypatch: pytest.MonkeyPatch):
    assert {step["verdict"] for step in steps(model, monkeypatch, AsOnAGpu)} == {"ok"}


def test_a_wrong_token_is_one_wrong_step(model, monkeypatch: pytest.MonkeyPatch):
    verdicts = [step["verdict"] for step in steps(model, monkeypatch, WrongToken)]
    assert [i for i, verdict in enumerate(verdicts) if verdict != "ok"] == [2, 6]
    assert verdicts[2].startswith("wrong: row 2 got token ")


def test_a_bit_that_changed_elsewhere_is_found(model, monkeypatch: pytest.MonkeyPatch):
    verdicts = [step["verdict"] for step in steps(model, monkeypatch, Scribbles)]
    assert [i for i, verdict in enumerate(verdicts) if verdict != "ok"] == [1, 7]
    assert verdicts[1].startswith("wrong: 1 slots of others were written, first (block, slot) (")


def test_rows_for_nobody_that_write_to_a_block_of_somebody_are_found(model, monkeypatch: pytest.MonkeyPatch):
    fill_up = batch.fill_up

    def not_in_the_dummy(buffers, num_seqs, num_rows, blocks):
        last = SimpleNamespace(num_blocks=blocks.num_blocks - 1, block_size=blocks.block_size)
        return fill_up(buffers, num_seqs, num_rows, last)

    monkeypatch.setattr(batch, "fill_up", not_in_the_dummy)
    verdicts = [step["verdict"] for step in steps(model, monkeypatch, AsOnAGpu)]
    # 3 sequences in 4 rows. When they come again, what is written is the same once more.
    assert [i for i, verdict in enumerate(verdicts) if verdict != "ok"] == [2]


def test_a_near_tie_is_none_of_both(model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph_checks, "reference_logits", lambda model, ids: torch.zeros(1, model.config.vocab_size))
    found = steps(model, monkeypatch, WrongToken)
    assert [(step["near_ties"], step["verdict"]) for step in found] == [(int(i in (2, 6)), "ok") for i in range(9)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_half_precision_only_what_rounding_explains_is_near(dtype: str):
    model = tokens.checked_model(TINY, CPU, getattr(torch, dtype))
    prompts = mixed_prompts(model, (1, 15, 17))
    judge = tokens.Nearly(model, prompts)
    right, wrong = (
        judge(stage.name, tokens.generated(stage, model, prompts, 8))
        for stage in (VectorizedGather, ForgetsTheLastToken)
    )
    assert right["verdict"] == "near" and right["gap"] <= right["allowed"] < wrong["gap"]
    assert wrong["verdict"].startswith("ForgetsTheLastToken: a token's logit is ")


def test_launches_are_what_starts_work_on_the_gpu():
    def event(cat, name):
        return {"ph": "X", "cat": cat, "name": name, "ts": 1, "dur": 1, "pid": 0, "tid": 1}

    calls = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaStreamSynchronize")
    events = [event("cuda_runtime", name) for name in calls] + [event("cuda_driver", "cuLaunchKernelEx")]
    events += [event("kernel", "gemm")] * 4 + [event("cpu_op", "aten::add"), event("gpu_memcpy", "Memcpy HtoD")]
    assert launch_counts(Trace({"traceEvents": events})) == {"launches": 3, "kernels": 4}


def test_the_engine_is_raced_without_graphs_and_with_them():
    stages = gpu_report.course().stages
    assert [stage.name for stage in stages][-2:] == ["engine_eager", "engine"]
    assert [stage.enforce_eager for stage in stages[-2:]] == [True, False]
    assert len({stage.name for stage in stages}) == len(stages) > 10
