"""Contenders of an offline race: each takes a batch of prompts, and makes exactly max_tokens new tokens of each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.engine.calls import Stop
from roseinfer.generate import generate
from roseinfer.llm.llm import LLM
from roseinfer.models import Model, load_model, to_hf
from roseinfer.models.gguf_path import gguf_path
from roseinfer.profiling.clock import device_clock
from roseinfer.reference import hf_batch
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..contenders import ContenderFailed, blame, stage_for
from ..peers import PEERS, PeerProcess, why_no_peers, write_model
from ..race import Contender, Run
from ..settings import ENGINE, HF_NAME, OFFLINE, PRECISIONS, QUANTIZED, STORED, Offline
from ..workload import Work

Tokens = list[list[int]]
HALF_CACHE = ("llama.cpp",)  # keep K and V in 16 bits unless all is in fp32
# How far below the best logit a token in fp32 may be: llama.cpp looks GELU up in a table of fp16 values.
NEAR = {"llama.cpp": 0.01}


@contextmanager
def entered(setting: Offline, stages: Sequence[type[Stage]] = ()) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Yield the contenders that can run (Hugging Face, stages, engine, peers), and why the others cannot.

    Contenders come precision by precision, fp32 first. Hugging Face's generate and stages never run with quantised
    weights.
    """
    contenders: list[Contender] = []
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for precision in sorted(setting.precisions, key=PRECISIONS.index):
            for who, make in _makers(setting, stages, precision, folder, stack):
                try:
                    contenders.append(make())
                except (ContenderFailed, ValueError) as reason:
                    left_out[f"{who} {precision}"] = str(reason)
        yield contenders, left_out


def _makers(
    setting: Offline, stages: Sequence[type[Stage]], precision: str, folder: Path, stack: ExitStack
) -> Iterator[tuple[str, Callable[[], Contender]]]:
    names = setting.contenders
    if precision not in QUANTIZED and ("hf" in names or stages):
        model = load_model(setting.model, setting.device, getattr(torch, precision))
        if "hf" in names:
            yield HF_NAME, partial(hf, model, precision)
        for stage_class in stages:
            yield stage_class.name, partial(stage, stage_class, model, precision)
    if "engine" in names:
        yield ENGINE, partial(engine, setting, precision)
    for name in names:
        if OFFLINE[name] in PEERS:
            yield OFFLINE[name], partial(peer, OFFLINE[name], setting, precision, folder, stack)


def hf(model: Model, precision: str) -> Contender:
    """Make a contender of transformers' generate with its dynamic cache. All prompts of a batch are equally long.

    Raises ValueError for a model that transformers cannot hold.
    """
    theirs = to_hf(model)

    def prepared(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        return partial(hf_batch, theirs, torch.tensor(prompts, device=model.device), max_tokens)

    return _here(HF_NAME, precision, model.device, prepared)


def stage(stage_class: type[Stage], model: Model, precision: str) -> Contender:
    """Make a contender of a stage behind the continuous loop, allocated before the clock starts."""

    def prepared(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        fresh = stage_for(stage_class, model, [len(prompt) + max_tokens for prompt in prompts])
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return lambda: [seq.output_ids for seq in generate(fresh, prompts, params)]

    return _here(stage_class.name, precision, model.device, prepared)


def engine(setting: Offline, precision: str) -> Contender:
    """Make a contender of roseinfer.LLM with just the blocks for the largest batch."""
    weights: dict[str, Any] = {}  # STORED is what LLM does with a GGUF file unless it is told otherwise
    if precision != STORED:
        weights = {"quantization" if precision in QUANTIZED else "dtype": precision}
    with blame(f"{ENGINE} {precision}", "its constructor"):
        llm = LLM(
            setting.model,
            **weights,
            device=setting.device,
            max_num_seqs=max(setting.batch_sizes),
            block_size=BLOCK_SIZE,
            num_kvcache_blocks=setting.num_blocks,
            enable_prefix_caching=False,  # every run computes its prompts
        )

    def prepared(prompts: Tokens, max_tokens: int) -> Callable[[], Tokens]:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return lambda: [list(one.outputs[0].token_ids) for one in llm.generate(prompts, params, use_tqdm=False)]

    return _here(ENGINE, precision, torch.device(setting.device), prepared)


def peer(name: str, setting: Offline, precision: str, folder: Path, stack: ExitStack) -> Contender:
    """Make a contender of another engine, in its own process until `stack` is closed.

    Raises ValueError for a model that peers are not given, ContenderFailed where this one cannot run.
    """
    if reason := why_no_peers():
        raise ContenderFailed(reason)
    if torch.device(setting.device).type != "cpu":
        raise ContenderFailed("peers run on the CPU alone")
    source = gguf_path(setting.model) if precision == STORED else folder
    assert source, "the setting was checked"
    if source == folder and not any(folder.iterdir()):
        write_model(load_model(setting.model), folder)
    started = PeerProcess(f"{name} {precision}", PEERS[name], source, precision, torch.get_num_threads())
    stack.callback(started.close)
    return _of_batches(name, precision, started.run, started.versions)


def _here(
    name: str, precision: str, device: torch.device, prepared: Callable[[Tokens, int], Callable[[], Tokens]]
) -> Contender:
    """Make a contender of this process. prepared(prompts, max_tokens) allocates, and returns the work to time."""
    now = device_clock(device, perf_counter)

    def run(prompts: Tokens, max_tokens: int) -> tuple[Tokens, float, float]:
        with blame(f"{name} {precision}", f"a batch of {len(prompts)}"):
            generate = prepared(prompts, max_tokens)
            began = now()
            return generate(), began, now()

    return _of_batches(name, precision, run)


def _of_batches(
    name: str,
    precision: str,
    run: Callable[[Tokens, int], tuple[Tokens, float, float]],
    versions: dict[str, str] | None = None,
) -> Contender:
    """Make a contender of run(prompts, max_tokens), which returns the tokens, and when it began and ended.

    Both times are by the clock that all processes share.
    """

    def served(work: Work, stop: Stop) -> Run:
        return Run.of_batch(*run([prompt for _, prompt in work], work[0][0].output_len))

    return Contender(name, f"{name} {precision}", {"precision": precision}, served, versions or {})


def cache_dtype(name: str, precision: str) -> torch.dtype:
    """Return the dtype of a contender's K and V beside weights in that precision."""
    if name in HALF_CACHE and precision != "float32":
        return torch.float16
    return torch.float32 if precision in QUANTIZED else getattr(torch, precision)
