"""What runs in a ladder: a stage, or Hugging Face's generate, on the same weights and prompts."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.generate import begin, decode_step
from roseinfer.models import Model, ModelConfig, to_hf
from roseinfer.profiling import TRANSFERS, bytes_copied, stage_ops, trace_once
from roseinfer.profiling.clock import Clock, device_clock, seconds_of
from roseinfer.profiling.step_bound import products_seconds
from roseinfer.reference import hf_batch
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .interleave import Contender, OnStep, Run
from .settings import HF_NAMES

Counted = TypeVar("Counted")


def require_fit(config: ModelConfig, **lengths: int) -> None:
    """Raise ValueError, naming all lengths, unless the model has positions for their sum."""
    if (num_tokens := sum(lengths.values())) > config.max_model_len:
        text = " + ".join(f"{name}={length}" for name, length in lengths.items())
        raise ValueError(f"{text} is {num_tokens} tokens, allowed: max_model_len={config.max_model_len}")


class ContenderFailed(RuntimeError):
    """A contender raised, or broke the seam's promises; the message names it and where."""


def blocks_for(lengths: abc.Sequence[int], block_size: int = BLOCK_SIZE) -> int:
    """Count the blocks of sequences that end with so many tokens: the last one is returned, never cached."""
    return sum(-(-(n - 1) // block_size) for n in lengths)


def stage_for(
    stage_class: type[Stage],
    model: Model,
    lengths: abc.Sequence[int],
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int | None = None,
) -> Stage:
    """Make a fresh stage with just the blocks for sequences that end with so many tokens.

    max_num_seqs: how many run at a time; all of them when None.
    """
    places = max_num_seqs or len(lengths)
    return stage_class(model, num_blocks=blocks_for(lengths, block_size), block_size=block_size, max_num_seqs=places)


def _flops_of(decode: Callable[[], Any]) -> int:
    """Count the operations of the matrix products, and those of the attention that PyTorch can count."""
    with FlopCounterMode(display=False) as counter:
        decode()
    return counter.get_total_flops()


class StageContender:
    """One stage class on fixed prompts, greedy, exactly max_new_tokens each (end tokens ignored).

    Each run has a fresh stage, allocated before the clock starts, so that every run starts from the same state.
    """

    def __init__(
        self,
        stage_class: type[Stage],
        model: Model,
        prompts: list[list[int]],
        max_new_tokens: int,
        clock: Clock = perf_counter,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.name = stage_class.name
        self.stage_class = stage_class
        self.model = model
        self.prompts = prompts
        self.params = SamplingParams(max_tokens=max_new_tokens, ignore_eos=True)
        self.clock = clock
        self.block_size = block_size

    def run(self, on_step: OnStep) -> Run:
        now = device_clock(self.model.device, self.clock)
        stage = self._fresh()
        num_blocks = stage.num_free_blocks
        with blame(self.name, "the prefill"):
            began = now()
            seqs = begin(stage, self.prompts, self.params)
            prefill_seconds = now() - began
        step_seconds: list[float] = []
        for step in range(self.params.most_tokens - 1):
            with blame(self.name, f"decode step {step}"):
                step_seconds.append(seconds_of(lambda: decode_step(stage, seqs), now))
            on_step(len(seqs) * len(step_seconds), sum(step_seconds))
        self._free(stage, seqs, num_blocks)
        outputs = [seq.output_ids for seq in seqs]
        return Run(prefill_seconds, tuple(step_seconds), outputs, stage.num_processes)

    def counts(self, step: int) -> dict[str, int]:
        """Count exactly what decode step `step` (0 is the first one) does: one whole stage.decode, without sampling.

        A step that is one function, sampling included, is counted as that: its stage.decode would be another step.

        aten_ops counts every start, those started by other ops included; it differs from device to device. copies, cats
        and selects are the stage's own (see stage_ops), and alike on every device. transfers are copies between
        devices, which a CPU does without.
        """
        # Three runs up to the same step: counting bytes takes ops apart, which would change the op counts.
        trace = self._one_decode(step, trace_once)
        ops = stage_ops(trace)
        moved = self._one_decode(step, bytes_copied)
        return {
            "aten_ops": sum(trace.op_counts().values()),
            "copies": ops["aten::copy_"],
            "cats": ops["aten::cat"],
            "selects": ops["aten::select"],
            "transfers": ops[TRANSFERS],
            "bytes_copied": moved.copied,
            "bytes_filled": moved.filled,
            "flops": self._one_decode(step, _flops_of),
        }

    def products_seconds(self) -> float | None:
        """Time the products of one decode step, in seconds, in the layout of the stage's own model.

        Returns None where they are inside the one function that the step is, or wait for another process.
        """
        stage = self._fresh()
        if stage.is_one_function or stage.num_processes > 1:
            return None
        with blame(self.name, "its matrix products"):
            return products_seconds(self.model, len(self.prompts), stage.model)

    def _one_decode(self, step: int, count: Callable[[Callable[[], Any]], Counted]) -> Counted:
        """Return what `count` makes of a fresh stage's decode step `step`; the stage and its weights are freed then."""
        stage, seqs = self.at_step(step)
        with blame(self.name, f"decode step {step}"):
            return count(partial(stage.next_tokens if stage.is_one_function else stage.decode, seqs))

    def at_step(self, step: int) -> tuple[Stage, list[Sequence]]:
        """Return a fresh stage and its sequences, ready for decode step `step`."""
        stage = self._fresh()
        with blame(self.name, "the prefill"):
            seqs = begin(stage, self.prompts, self.params)
        for done in range(step):
            with blame(self.name, f"decode step {done}"):
                decode_step(stage, seqs)
        return stage, seqs

    def _fresh(self) -> Stage:
        lengths = [len(prompt) + self.params.most_tokens for prompt in self.prompts]
        with blame(self.name, "its constructor"):
            return stage_for(self.stage_class, self.model, lengths, self.block_size)

    def _free(self, stage: Stage, seqs: list[Sequence], num_blocks: int) -> None:
        with blame(self.name, "free"):
            for seq in seqs:
                stage.free(seq)
        check_all_free(stage, num_blocks)


def check_all_free(stage: Stage, num_blocks: int) -> None:
    """Check that a stage whose sequences were all freed has its num_blocks again; else raise ContenderFailed."""
    if stage.num_free_blocks != num_blocks:
        raise ContenderFailed(
            f"{stage.name} lost blocks: {stage.num_free_blocks} of {num_blocks} are free with all sequences freed"
        )


def hf_contender(
    model: Model,
    prompts: list[list[int]],
    max_new_tokens: int,
    clock: Clock = perf_counter,
    cache: str = "dynamic",
) -> Contender:
    """Make a contender of transformers' generate on a copy of the weights: one batch, greedy, no end token.

    cache: a key of HF_NAMES. A static one is allocated once, and on a GPU generate compiles the model for it. All
    prompts must be equally long, so that no padding is involved. Its steps are timed by a streamer, which generate
    calls with each step's tokens; generate's own set-up counts as prefill. Raises ValueError for a model that
    transformers cannot hold.
    """
    name = HF_NAMES[cache]
    try:
        hf = to_hf(model)
    except ValueError as error:
        raise ValueError(f"{name} cannot run this model ({error}): leave it out (with_hf=False, --no-hf)") from error
    if cache == "static" and model.device.type == "cuda":
        torch.compiler.reset()  # what was compiled for other sizes would count against the limit on recompiling
    input_ids = torch.tensor(prompts, device=model.device)
    options = {"cache_implementation": "static"} if cache == "static" else {}

    def run(on_step: OnStep) -> Run:
        streamer = _TimingStreamer(device_clock(model.device, clock), len(prompts), on_step)
        with blame(name, "generate"):
            outputs = hf_batch(hf, input_ids, max_new_tokens, streamer=streamer, **options)
        prefill_seconds, *step_seconds = streamer.seconds
        return Run(prefill_seconds, tuple(step_seconds), outputs)

    return name, run


class _TimingStreamer:
    """Reads the clock whenever generate hands over the tokens of a step; what on_step does is not counted."""

    def __init__(self, now: Clock, batch_size: int, on_step: OnStep) -> None:
        self.seconds: list[float] = []
        self._now = now
        self._batch_size = batch_size
        self._on_step = on_step
        self._seen_prompt = False
        self._began = now()

    def put(self, tokens: Tensor) -> None:
        if not self._seen_prompt:  # generate hands over the prompt first
            self._seen_prompt = True
            return
        self.seconds.append(self._now() - self._began)
        decode_seconds = self.seconds[1:]
        if decode_seconds:
            self._on_step(self._batch_size * len(decode_seconds), sum(decode_seconds))
        self._began = self._now()

    def end(self) -> None:
        pass


@contextmanager
def blame(name: str, where: str) -> Iterator[None]:
    """Turn errors inside into a ContenderFailed that says who failed and where; the cause stays attached."""
    try:
        yield
    except Exception as error:
        raise ContenderFailed(f"{name} failed in {where}: {type(error).__name__}: {error}") from error
