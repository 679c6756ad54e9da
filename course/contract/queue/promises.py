"""Promises of the queue: for any arrivals, step sizes and pools, each request gets its own tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

from roseinfer.arguments import counted
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..broken_promises import refused
from ..making import copy_of
from ..small_models import expected, prompts_for
from .driver import BUDGET, POLICY, Queue, takes

MODEL = "gpt2"
LENGTHS, NEW_TOKENS = (1, 19, 7, 30, 4, 12, 64, 3), (6, 1, 9, 4, 12, 3, 5, 8)
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 1},
    {},
    {"temperature": 1.5, "top_k": 9, "seed": 2},
)


def runs_a_queue(stage_class: type[Stage], device: str) -> None:
    """Add the same requests all at once, one after each step in reverse order, and with three steps between them."""
    requests = list(zip(prompts_for(MODEL, LENGTHS), NEW_TOKENS, cycle(WISHES), strict=False))
    for order, steps_between in ((requests, 0), (requests[::-1], 1), (requests[::2] + requests[1::2], 3)):
        queue = Queue(stage_class, device, num_blocks=80, block_size=4, max_num_seqs=4)
        for prompt, max_tokens, wish in order:
            queue.add(prompt, max_tokens, **wish)
            queue.steps(steps_between)
        queue.run_out()


class Budgeted(Queue):
    """Counts the computed tokens of requests that share nothing, in a pool with blocks for all of them."""

    def step(self) -> list[Sequence]:
        before = [seq.num_cached_tokens for seq in self.seqs]
        done = super().step()
        computed = sum(max(0, seq.num_cached_tokens - n) for seq, n in zip(self.seqs, before, strict=True))
        within = self.budget is None or computed <= self.budget
        assert within, f"a step computed {computed} tokens, {BUDGET}={self.budget}"
        return done


def any_budget(stage_class: type[Stage], device: str) -> None:
    """Check prompts longer than a step, which are cut wherever the budget ends, while other requests decode."""
    for budget in (3, 4, 7, 33):
        queue = Budgeted(stage_class, device, budget=budget, num_blocks=40, block_size=4, max_num_seqs=3)
        for prompt, wish in zip(prompts_for(MODEL, (5, 30, 1, 12)), WISHES, strict=True):
            queue.add(prompt, 6, **wish)
            queue.steps(2)
        queue.run_out()


def small_pools(stage_class: type[Stage], device: str) -> None:
    """Check sequences that outgrow the pool together, so that some are preempted and must be computed again."""
    for num_blocks in (6, 7, 9, 12):
        queue = Queue(stage_class, device, budget=16, num_blocks=num_blocks, block_size=4, max_num_seqs=4)
        for prompt, wish in zip(prompts_for(MODEL, (5, 3, 8, 4)), WISHES, strict=True):
            queue.add(prompt, 16, **wish)
        queue.steps(3)
        queue.add(prompts_for(MODEL, (21,))[0], 3)
        queue.run_out_twice()


def ends_where_it_should(stage_class: type[Stage], device: str) -> None:
    """Check that requests end at a stop token, at the model's end token or after one token, and queued ones follow."""
    lengths = (5, 9, 2, 12)
    prompts, outputs = prompts_for(MODEL, lengths), expected(MODEL, lengths, 8, device)
    model = copy_of(MODEL, device)
    model.config = replace(model.config, eos_token_id=(outputs[3][4],))
    for places in (1, 3):
        queue = Queue(stage_class, device, own=model, num_blocks=16, block_size=4, max_num_seqs=places)
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            queue.add(prompt, 8, stop_token_ids=(output[2 + i],))
            queue.add(prompt, 8, ignore_eos=i % 2 == 0)
            queue.add(prompt, 1)
            queue.steps(i)
        queue.run_out()


def refused_when_added(stage_class: type[Stage], device: str) -> None:
    """Check that what can never run is refused when added and leaves no trace; the largest request is taken."""
    queue = Queue(stage_class, device, num_blocks=3, block_size=4, max_num_seqs=2)
    ended = queue.add([1, 2, 3], 1)
    queue.run_out()
    runs, waits = queue.add([5] * 5, 8), queue.add([6] * 11, 2)
    queue.steps(2)
    for what, seq, named in (
        ("191 tokens and max_tokens=2", _request([1] * 191, 2), "max_model_len=192"),
        ("5 tokens and max_tokens=9", _request([1] * 5, 9), "num_blocks=3"),
        ("a token id of 97", _request([97], 1), "97"),
        ("a stop string", _request([1], 1, stop="a"), "stop"),
        ("n=2 samples", _request([1], 1, n=2, temperature=1.0), "n=2"),
        ("a request that runs", runs, ""),
        ("one that waits", waits, ""),
        ("one that has ended", ended, ""),
    ):
        with refused(f"adding {what}", named):
            queue.stage.add(seq)
        queue.require_books()
    with refused("aborting a request that was never added"):
        queue.stage.abort(_request([1], 1))
    queue.run_out()


def _request(prompt: list[int], max_tokens: int, **wishes: Any) -> Sequence:
    return Sequence(prompt, SamplingParams(max_tokens=max_tokens, **wishes))


def no_request_starves(stage_class: type[Stage], device: str) -> None:
    """Check that a request ends although others come faster than they are served: at most several hundred go first."""
    policies: list[dict[str, Any]] = [{}]
    if takes(stage_class, POLICY):
        policies += {POLICY: "shortest"}, {POLICY: "longest_output"}
    for policy in policies:
        queue = Queue(stage_class, device, num_blocks=60, block_size=4, max_num_seqs=16, **policy)
        for i in range(16):
            queue.add([i], 2)
        starved = queue.add(prompts_for(MODEL, (20,))[0], 1)
        for i in range(16):
            queue.add([i], 2)
        for step in range(64):
            for i in range(9):
                queue.add([(31 * step + i) % 97], 2)
            queue.step()
        later = f"{counted(64 * 9, 'request')} came after {queue.name(starved)}"
        assert starved.finish_reason, f"{later}, and it still waits ({policy or 'no policy given'})"
        queue.run_out()


def ordered_by_policy(stage_class: type[Stage], device: str) -> None:
    """Check the order of every named policy: first by priority, then as the policy says, then by arrival."""
    if not takes(stage_class, POLICY):
        return
    sizes: dict[str, Any] = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 1}
    with refused("policy='nonsense'", "policy"):
        Queue(stage_class, device, **sizes, policy="nonsense")
    lengths, outputs, priorities = (7, 3, 12, 3, 9, 5), (2, 5, 1, 4, 5, 3), (1, 0, 0, 0, 1, 0)
    keys = {
        "fcfs": lambda i: 0,
        "shortest": lambda i: lengths[i],
        "longest_output": lambda i: -outputs[i],
        "packed": lambda i: -lengths[i],
    }
    for policy, key in keys.items():
        for important in (priorities, (0,) * 6):
            queue = Queue(stage_class, device, **sizes, policy=policy)
            for prompt, max_tokens, priority in zip(prompts_for(MODEL, lengths), outputs, important, strict=True):
                queue.add(prompt, max_tokens, priority=priority)
            order = _order_of_first_tokens(queue)
            right = sorted(range(6), key=lambda i: (important[i], key(i), i))  # noqa: B023
            assert order == right, (
                f"policy={policy!r}, prompts of {lengths}, max_tokens of {outputs}, priorities {important}: requests "
                f"run in the order {order}, expected {right}"
            )
            queue.run_out()
    with refused("policy='longest_output' for a request that may stop early", "ignore_eos"):
        Queue(stage_class, device, **sizes, policy="longest_output").add([1], 3, ignore_eos=False)


def _order_of_first_tokens(queue: Queue) -> list[int]:
    order: list[int] = []
    for _ in range(200):
        if not queue.stage.has_work:
            break
        done = queue.step()
        order += [i for i, seq in enumerate(queue.seqs) if seq in done and len(seq.output_ids) == 1]
    return order
