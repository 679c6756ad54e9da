"""Contenders of an offline race: each takes a batch of prompts, and makes exactly max_tokens new tokens of each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.generate import generate
from roseinfer.llm.llm import LLM
from roseinfer.models import Model, load_model, to_hf
from roseinfer.profiling.clock import device_clock
from roseinfer.reference import hf_batch
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..contenders import ContenderFailed, blame, stage_for
from ..peers import PEERS, PeerProcess, wait_until_idle, why_no_peers, write_model
from ..race_setting import ENGINE, HF_NAME, QUANTIZED, RaceSetting
from ..settings import OFFLINE, PRECISIONS

Tokens = list[list[int]]
HALF_CACHE = ("llama.cpp",)  # keep K and V in 16 bits unless all is in fp32
# How far below the best logit a token in fp32 may be: llama.cpp looks GELU up in a table of fp16 values.
NEAR = {"llama.cpp": 0.01}


@dataclass(frozen=True)
class BatchContender:
    """A contender. run(prompts, max_tokens) returns the new token ids, and when it began and ended.

    Both times are by the clock that all processes share.
    precision: that of the weights. kv_cache: the dtype of K and V. near: see Referee.check. versions: those of
    libraries that describe_host does not name. drafts: how many tokens it has drafted so far, and how many of these
    were accepted.
    """

    name: str
    precision: str
    run: Callable[[Tokens, int], tuple[Tokens, float, float]]
    kv_cache: torch.dtype
    near: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    drafts: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def called(self) -> str:
        return f"{self.name} {self.precision}"

    @property
    def weights(self) -> torch.dtype:
        return getattr(torch, self.precision)


@contextmanager
def entered(
    setting: RaceSetting, stages: Sequence[type[Stage]], names: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[list[BatchContender], dict[str, str]]]:
    """Yield the contenders that can run (Hugging Face, stages, engine, peers), and why the others cannot.

    Contenders come precision by precision, fp32 first. names: keys of OFFLINE. Hugging Face's generate and stages never
    run with quantised weights.
    """
    contenders: list[BatchContender] = []
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for precision in sorted(precisions, key=PRECISIONS.index):
            for who, make in _makers(setting, stages, names, precision, folder, stack):
                try:
                    contenders.append(make())
                except (ContenderFailed, _LeftOut) as reason:
                    left_out[f"{who} {precision}"] = str(reason)
        yield contenders, left_out


class _LeftOut(Exception):
    """The reason why a contender does not run here."""


def _makers(
    setting: RaceSetting,
    stages: Sequence[type[Stage]],
    names: Sequence[str],
    precision: str,
    folder: Path,
    stack: ExitStack,
) -> Iterator[tuple[str, Callable[[], BatchContender]]]:
    in_torch = precision not in QUANTIZED
    if in_torch and ("hf" in names or stages):
        model = load_model(setting.spec, setting.device, getattr(torch, precision))
        if "hf" in names:
            yield HF_NAME, lambda: hf(model)
        for stage_class in stages:
            yield stage_class.name, partial(stage, stage_class, model)
    if "engine" in names:
        yield ENGINE, lambda: engine(setting, precision)
        if drafting := setting.speculative:
            yield drafting_name(drafting), lambda: engine(setting, precision, drafting)
    for name in names:
        if OFFLINE[name] in PEERS:
            yield OFFLINE[name], partial(peer, OFFLINE[name], setting, precision, folder, stack)


def hf(model: Model) -> BatchContender:
    """Make a contender of transformers' generate with its dynamic cache. All prompts of a batch are equally long."""
    try:
        theirs, device = to_hf(model), model.device
    except ValueError as error:
        raise _LeftOut(str(error)) from error

    def make(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        return partial(hf_batch, theirs, torch.tensor(prompts, device=device), max_tokens)

    return _here(HF_NAME, _name(model.dtype), device, make)


def stage(stage_class: type[Stage], model: Model) -> BatchContender:
    """Make a contender of a stage behind the continuous loop, allocated before the clock starts."""

    def make(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        fresh = stage_for(stage_class, model, [len(prompt) + max_tokens for prompt in prompts])
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return lambda: [seq.output_ids for seq in generate(fresh, prompts, params)]

    return _here(stage_class.name, _name(model.dtype), model.device, make)


def drafting_name(speculative: dict[str, Any]) -> str:
    return f"{ENGINE} + {speculative['method']}"


def engine(setting: RaceSetting, precision: str, speculative: dict[str, Any] | None = None) -> BatchContender:
    """Make a contender of roseinfer.LLM with just the blocks for the largest batch. speculative: as LLM takes it."""
    name = drafting_name(speculative) if speculative else ENGINE
    weights: dict[str, Any] = {"quantization" if precision in QUANTIZED else "dtype": precision}
    with blame(f"{name} {precision}", "its constructor"):
        llm = LLM(
            setting.spec,
            **weights,
            device=setting.device,
            max_num_seqs=setting.most_seqs,
            block_size=BLOCK_SIZE,
            num_kvcache_blocks=setting.num_blocks(setting.most_seqs),
            enable_prefix_caching=False,  # every run computes its prompts
            speculative=speculative,
        )
    metrics = llm.engine.metrics

    def make(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return lambda: [list(one.outputs[0].token_ids) for one in llm.generate(prompts, params, use_tqdm=False)]

    contender = _here(name, precision, torch.device(setting.device), make)
    return replace(contender, drafts=lambda: (metrics.num_drafted, metrics.num_accepted))


def peer(name: str, setting: RaceSetting, precision: str, folder: Path, stack: ExitStack) -> BatchContender:
    """Make a contender of another engine, in its own process until `stack` is closed."""
    if reason := why_no_peers():
        raise _LeftOut(reason)
    if torch.device(setting.device).type != "cpu":
        raise _LeftOut("peers run on the CPU alone")
    if not any(folder.iterdir()):
        try:
            write_model(load_model(setting.spec), folder)
        except ValueError as error:
            raise _LeftOut(str(error)) from error
    started = PeerProcess(f"{name} {precision}", PEERS[name], folder, precision, torch.get_num_threads())
    stack.callback(started.close)
    is_half = name in HALF_CACHE and precision != "float32"
    cache = _cache_of(precision, is_half)
    return BatchContender(name, precision, started.run, cache, NEAR.get(name, 0.0), started.versions)


def _here(
    name: str, precision: str, device: torch.device, make: Callable[[Tokens, int], Callable[[], Tokens]]
) -> BatchContender:
    """Make a contender that runs in this process. make(prompts, max_tokens) allocates, and returns the work to time."""
    now = device_clock(device, perf_counter)

    def run(prompts: Tokens, max_tokens: int) -> tuple[Tokens, float, float]:
        with blame(f"{name} {precision}", f"a batch of {len(prompts)}"):
            work = make(prompts, max_tokens)
            began = now()
            outputs = work()
            ended = now()
        wait_until_idle()
        return outputs, began, ended

    return BatchContender(name, precision, run, _cache_of(precision))


def _cache_of(precision: str, is_half: bool = False) -> torch.dtype:
    if is_half:
        return torch.float16
    return torch.float32 if precision in QUANTIZED else getattr(torch, precision)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
