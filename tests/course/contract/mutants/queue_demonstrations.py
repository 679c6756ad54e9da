"""What shows that a stage with a queue is wrong: requests that are served beside the cache-free reference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course.contract.making import copy_of
from course.contract.small_models import model_of, prompts_of
from roseinfer.reference import reference_logits
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .demonstrations import Demonstration, demonstration

MODEL = "gpt2"


@lru_cache(maxsize=2_000)
def continuation(model: str, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    """max_tokens tokens, each from a forward over the whole text."""
    seq = Sequence(list(prompt), params)
    for _ in range(params.max_tokens):
        seq.append(sample(reference_logits(model_of(model, "cpu"), seq.token_ids)[-1:], [seq])[0])
    return seq.output_ids


class Served:
    """A stage, and the requests that it got. own: a model in place of a copy of the named one."""

    def __init__(self, stage_class: type[Stage], model: str = MODEL, own: Any = None, **sizes: Any) -> None:
        self.model = model
        sizes = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4} | sizes
        self.stage: Any = stage_class(own or copy_of(model, "cpu"), **sizes)
        self.seqs: dict[str, Sequence] = {}

    def add(
        self, name: str, prompt: list[int], max_tokens: int, seed: int | None = None, parent: Sequence | None = None
    ) -> None:
        drawn = {} if seed is None else {"temperature": 1.0, "seed": seed}
        seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **drawn), parent=parent)
        self.stage.add(seq)
        self.seqs[name] = seq

    def run_out(self) -> None:
        for _ in range(3_000):
            if not self.stage.has_work:
                break
            self.stage.step()
        for name, seq in self.seqs.items():
            right = continuation(self.model, tuple(seq.token_ids[: seq.num_prompt_tokens]), seq.params)
            if seq.finish_reason == "abort":
                right = right[: len(seq.output_ids)]
            assert seq.output_ids == right, f"{name}: {seq.output_ids}, expected {right}"
        self.stage.tables.check()
        free, total = self.stage.num_free_blocks, self.stage.tables.num_blocks
        assert free == total, f"{free} of {total} blocks are free at the end"


@demonstration
def served(stage_class, script: str, model: str = MODEL, **sizes: Any) -> None:
    """Calls in order, on requests named by letters; then all run to their ends.

    "+a9*5": a has a prompt of 9 tokens, and gets 5. "+b9=6a*5": the first 6 of them are a's. "+c:a*5": a sample of a's
    prompt, drawn by a seed. "+a9*5?": drawn. "s3": three steps. "-a": an abort. "!40": a step with an error at that
    operation.
    """
    run = Served(stage_class, model, **{"num_blocks": 40} | sizes)
    for number, call in enumerate(script.split()):
        _make(run, call, number)
    run.run_out()


def _make(run: Served, call: str, number: int) -> None:
    kind, rest = call[0], call[1:]
    if kind == "+":
        what, _, max_tokens = rest.partition("*")
        name, seed, parent = what[0], number if what[1] == ":" or rest.endswith("?") else None, None
        if what[1] == ":":
            parent = run.seqs[what[2]]
            prompt = parent.token_ids[: parent.num_prompt_tokens]
        else:
            length, _, shared = what[1:].partition("=")
            [prompt] = prompts_of([int(length)], 97, seed=number)
            if shared:
                prompt[: int(shared[:-1])] = run.seqs[shared[-1]].token_ids[: int(shared[:-1])]
        run.add(name, prompt, int(max_tokens.rstrip("?")), seed, parent)
    elif kind == "s":
        for _ in range(int(rest or 1)):
            if run.stage.has_work:
                run.stage.step()
    elif kind == "-":
        run.stage.abort(run.seqs[rest])
    else:
        for context in (ErrorAtOperation(int(rest)), nullcontext()):
            with suppress(Broken), context:
                run.stage.step()


class Broken(RuntimeError):
    """As a device out of memory raises one."""


class ErrorAtOperation(TorchDispatchMode):
    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= func.namespace == "aten"
        if self.left == 0:
            raise Broken
        return func(*args, **(kwargs or {}))


def fails_somewhere(script: str, **sizes: Any) -> Demonstration:
    """By brute force: the script with an error at each tenth operation of a step, in place of "!"."""
    return any_of(*(served(script.replace("!", f"!{at}"), **sizes) for at in range(5, 200, 10)))


def any_of(*demonstrations: Demonstration) -> Demonstration:
    """The first of them that shows something."""
    return lambda stage_class: next(filter(None, (shows(stage_class) for shows in demonstrations)), "")


@demonstration
def in_turn(stage_class, *prompts: list[int], model: str = MODEL, **sizes: Any) -> None:
    """These prompts one after the other, each with a token after it, so that its blocks are found by the next."""
    run = Served(stage_class, model, **{"num_blocks": 40, "max_num_seqs": 1} | sizes)
    for i, prompt in enumerate(prompts):
        run.add(str(i), [*prompt, 50], 4)
    run.run_out()


@demonstration
def stopped(stage_class) -> None:
    """A request that ends at a stop token, beside one that goes on."""
    run = Served(stage_class, max_num_seqs=2)
    [prompt] = prompts_of([5], 97, seed=1)
    right = continuation(MODEL, tuple(prompt), SamplingParams(max_tokens=8))
    seq = Sequence(prompt, SamplingParams(max_tokens=8, stop_token_ids=(right[2],)))
    run.stage.add(seq)
    run.add("b", [1, 2, 3], 12)
    run.run_out()
    assert seq.output_ids == right[: right.index(right[2]) + 1]


@demonstration
def waits_for_ever(stage_class, **sizes: Any) -> None:
    """One request with a long prompt, and then as many short ones a step as a step serves, 600 times."""
    run = Served(stage_class, **{"num_blocks": 20, "max_num_seqs": 1} | sizes)
    run.add("first", [5], 3)
    run.add("long", [4] * 12, 1)
    for i in range(600):
        run.add(str(i), [i % 97], 1)
        run.stage.step()
        if run.seqs["long"].finish_reason:
            return
    raise AssertionError("it waits after 600 others")


@demonstration
def is_refused(stage_class, *make: Callable[[], Sequence], **sizes: Any) -> None:
    """The last of these requests is to be refused when it is added."""
    stage = Served(stage_class, **{"num_blocks": 8, "max_num_seqs": 2} | sizes).stage
    seqs = [one() for one in make]
    for seq in seqs[:-1]:
        stage.add(seq)
    try:
        stage.add(seqs[-1])
    except ValueError:
        return
    raise AssertionError("it is taken")


@demonstration
def bad_logits(stage_class, num_prompt: int) -> None:
    """A request that has NaN at position 6, in its prompt or after it, and is aborted when a step says so."""
    model = copy_of(MODEL, "cpu")
    with torch.no_grad():
        model.wpe.weight[6] = torch.nan
    run = Served(stage_class, own=model, max_num_seqs=2)
    run.add("bad", list(range(num_prompt)), 6)
    run.add("good", [5], 4)
    while run.stage.has_work:
        try:
            run.stage.step()
        except ValueError:
            run.stage.abort(run.seqs["bad"])
    run.run_out()


@demonstration
def first_to_end(stage_class, names: str, *adds: str, **sizes: Any) -> None:
    """In one place, requests end in the order of `names`. "a9*5": a prompt of 9 tokens, 5 new ones; "!": important."""
    run = Served(stage_class, **{"num_blocks": 40, "max_num_seqs": 1} | sizes)
    for number, add in enumerate(adds):
        _make(run, "+" + add.rstrip("!"), number)
        run.seqs[add[0]].priority = -add.count("!")
    order = []
    while run.stage.has_work:
        run.stage.step()
        order += [name for name, seq in run.seqs.items() if seq.finish_reason and name not in order]
    assert "".join(order) == names, f"{order}, expected {names}"
