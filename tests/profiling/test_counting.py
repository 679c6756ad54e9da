"""count_ops and bytes_copied: exact facts of a step."""

import pytest
import torch
from trace_cases import event

from roseinfer.profiling import TRANSFERS, CopiedBytes, Trace, bytes_copied, count_ops, span, stage_ops, trace_once

FLOAT = 4


def test_counts_include_the_ops_that_ops_call():
    counts = count_ops(lambda: torch.zeros(3))
    assert (counts["aten::zeros"], counts["aten::empty"], counts["aten::zero_"]) == (1, 1, 1)


def test_counts_inside_the_first_span_of_a_name():
    def step():
        torch.zeros(2)
        for copies in (3, 5):
            with span("roseinfer.kv.append_token"):
                for _ in range(copies):
                    torch.ones(2).clone()

    assert count_ops(step)["aten::clone"] == 8
    inside = count_ops(step, span="roseinfer.kv.append_token")
    assert inside["aten::clone"] == 3
    assert "aten::zeros" not in inside
    with pytest.raises(ValueError, match="no span 'roseinfer.nope'.*roseinfer.kv.append_token"):
        count_ops(step, span="roseinfer.nope")


def test_count_ops_runs_the_step_once_and_lets_errors_through():
    calls = []
    count_ops(lambda: calls.append(None))
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        count_ops(lambda: 1 / 0)
    assert not torch.autograd._profiler_enabled()


x = torch.arange(24.0).view(4, 6)
out = torch.empty(4, 6)
rows = torch.tensor([0, 2])
short_rows = rows.int()
mask = x > 19  # 4 elements


def assign(target, index, value):
    target[index] = value


MOVES = {
    "copy_": (lambda: out.copy_(x), 24),
    "slice assignment": (lambda: assign(out, slice(0, 2), x[:2]), 12),
    "cat": (lambda: torch.cat([x, x[:1]]), 30),
    "cat out": (lambda: torch.cat([x[:2], x[2:]], out=out), 24),
    "stack": (lambda: torch.stack([x, x]), 48),
    "hstack": (lambda: torch.hstack([x, x]), 48),
    "clone": (lambda: x.clone(), 24),
    "contiguous, nothing to do": (lambda: x.contiguous(), 0),
    "contiguous, transposed": (lambda: x.t().contiguous(), 24),
    "reshape, a view": (lambda: x.reshape(6, 4), 0),
    "reshape, a copy": (lambda: x.t().reshape(-1), 24),
    "expand and copy": (lambda: x.expand(3, 4, 6).contiguous(), 72),
    "repeat": (lambda: x.repeat(2, 1), 48),
    "index": (lambda: x[rows], 12),
    "index with a mask": (lambda: x[mask], 4),
    "index_select": (lambda: x.index_select(0, rows), 12),
    "gather": (lambda: x.gather(0, torch.tensor([[0, 1, 2]])), 3),
    "index_put_, rows": (lambda: assign(out, rows, x[:2]), 12),
    "index_put_, one value each": (lambda: assign(out, (rows, rows), x[0, :2]), 2),
    "index_put_, columns": (lambda: assign(out, (slice(None), rows), x[:, :2]), 8),
    "index_put_, broadcast": (lambda: assign(out, (rows[:, None], torch.arange(3)), x[:2, :3]), 6),
    "index_put_, a mask": (lambda: assign(out, mask, x[0, :4]), 4),
    "index_copy_": (lambda: out.index_copy_(0, rows, x[:2]), 12),
    "arithmetic": (lambda: (x + 1) @ x.t().softmax(0), 0),
    "views": (lambda: x[1:3].t().unsqueeze(0).expand(3, 6, 2), 0),
    "embedding": (lambda: torch.nn.functional.embedding(rows, x), 0),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", MOVES)
def test_copied_bytes_are_those_written(name, mode):
    move, elements = MOVES[name]

    def step():
        with mode():
            move()

    assert bytes_copied(step) == CopiedBytes(copied=elements * FLOAT, filled=0)
    with mode():
        assert bytes_copied(move) == CopiedBytes(copied=elements * FLOAT, filled=0)


FILLS = {
    "zeros": (lambda: torch.zeros(2, 3), 6),
    "zeros_like": (lambda: torch.zeros_like(x), 24),
    "new_zeros": (lambda: x.new_zeros(5), 5),
    "full": (lambda: torch.full((2,), 7.0), 2),
    "ones": (lambda: torch.ones(2), 2),
    "zero_": (lambda: out.zero_(), 24),
    "fill_": (lambda: out[0].fill_(3), 6),
    "assign a number": (lambda: assign(out, (0, slice(0, 3)), 0.0), 3),
    "empty": (lambda: torch.empty(9), 0),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", FILLS)
def test_filled_bytes_are_those_written(name, mode):
    fill, elements = FILLS[name]
    with mode():
        assert bytes_copied(fill) == CopiedBytes(copied=0, filled=elements * FLOAT)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_padding_fills_its_output_and_copies_its_input(mode):
    with mode():
        moved = bytes_copied(lambda: torch.nn.functional.pad(x, (0, 2)))
    assert moved == CopiedBytes(copied=24 * FLOAT, filled=32 * FLOAT)


def test_a_change_of_dtype_writes_the_new_elements():
    with torch.inference_mode():
        assert bytes_copied(lambda: x.to(torch.bfloat16)) == CopiedBytes(copied=24 * 2, filled=0)
        assert bytes_copied(lambda: x.to(torch.float32)) == CopiedBytes(copied=0, filled=0)


def test_a_tensor_made_on_another_device_is_no_copy_and_one_copied_into_is():
    there = torch.empty(4, 6, device="meta")
    assert bytes_copied(lambda: x.to("meta")) == CopiedBytes(0, 0)
    assert bytes_copied(lambda: torch.tensor([1, 2], device="meta")) == CopiedBytes(0, 0)
    assert bytes_copied(lambda: x.to("meta", torch.float16).to(torch.float32)) == CopiedBytes(24 * FLOAT, 0)
    assert bytes_copied(lambda: there.copy_(x)) == CopiedBytes(24 * FLOAT, 0), "a CPU makes this copy, too"


def test_what_fused_attention_does_to_its_mask_is_not_counted():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        ops: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    q = torch.zeros(1, 2, 1, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.inference_mode(), Seen() as seen:
        assert bytes_copied(lambda: attend(q, q, q, attn_mask=torch.ones(1, 1, 1, 1) > 0)) == CopiedBytes(0, 4)
    assert "scaled_dot_product_attention" in seen.ops, "it reached the device whole, so its inside was not seen"


INSIDE = {
    "a stage's own copy": (lambda: out.copy_(x), {"copy_": 1}),
    "indices become int64 inside index": (lambda: x[short_rows], {"index": 1}),
    "index_select cuts views on a CPU": (lambda: x.index_select(1, rows), {"index_select": 1}),
    "one side of a comparison becomes int64": (lambda: rows < short_rows, {"lt": 1}),
    "a reshape that must copy": (lambda: x.t().reshape(24), {"reshape": 1, "clone": 1, "copy_": 1}),
    "a linear layer": (lambda: torch.nn.functional.linear(x, x[0].view(1, 6), x[0, :1]), {"linear": 1}),
}


@pytest.mark.parametrize("name", INSIDE)
def test_an_op_with_a_kernel_of_its_own_is_one_op(name):
    step, expected = INSIDE[name]
    ops = stage_ops(trace_once(step))
    moves = ("copy_", "index", "index_select", "lt", "reshape", "clone", "linear", "addmm")
    assert {op: ops[f"aten::{op}"] for op in moves if ops[f"aten::{op}"]} == expected
    assert ops[TRANSFERS] == 0


def a_gpus_step() -> Trace:
    """Return a GPU's step: an upload (.to), a table copied to its buffer, a cast on the device, tokens read back."""

    def copy(start: float, way: str, correlation: int) -> list[dict]:
        launch = event("cudaMemcpyAsync", start + 2, 1, cat="cuda_runtime", correlation=correlation)
        work = event(f"Memcpy {way}", start + 5, 1, "gpu_memcpy", pid=0, tid=7, correlation=correlation)
        return [event("aten::copy_", start + 1, 3, cat="cpu_op"), launch, work]

    def to(start: float) -> list[dict]:
        return [event("aten::to", start, 5, cat="cpu_op"), event("aten::_to_copy", start + 0.5, 4, cat="cpu_op")]

    kernel = [
        event("aten::copy_", 21, 3, cat="cpu_op"),
        event("cudaLaunchKernel", 22, 1, cat="cuda_runtime", correlation=3),
        event("cast", 25, 1, cat="kernel", pid=0, tid=7, correlation=3),
    ]
    uploaded, into_buffer = copy(0, "HtoD (Pageable -> Device)", 1), copy(10, "HtoD (Pinned -> Device)", 2)
    read_back = copy(30, "DtoH (Device -> Pageable)", 4)
    return Trace({"traceEvents": [*to(0), *uploaded, *into_buffer, *to(20), *kernel, *to(30), *read_back]})


def test_what_a_cpu_does_without_is_a_transfer_and_no_copy():
    trace = a_gpus_step()
    assert trace.op_counts() == {"aten::to": 3, "aten::_to_copy": 3, "aten::copy_": 4}, "all that the profiler saw"
    assert stage_ops(trace) == {"aten::to": 3, "aten::_to_copy": 1, "aten::copy_": 2, TRANSFERS: 2}


def test_counting_does_not_change_results():
    linear = torch.nn.Linear(6, 6)
    query = torch.randn(1, 2, 4, 6)
    results = []

    @torch.inference_mode()
    def step():
        attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        results.append(linear(attended.transpose(1, 2).reshape(4, 12)[:, :6]))

    step()
    bytes_copied(step)
    torch.testing.assert_close(results[0], results[1])


def test_an_error_in_the_step_leaves_no_mode_behind():
    with pytest.raises(ZeroDivisionError):
        bytes_copied(lambda: 1 / 0)
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
