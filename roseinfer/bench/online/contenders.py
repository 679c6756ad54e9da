"""Contenders of an online race: the engine under a budget and a policy, and transformers' continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.drive import LOOK_S, WallClock
from roseinfer.engine.calls import Stop
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.llm.loading import model_to_serve
from roseinfer.models import Model, load_model, to_hf

from ..contenders import ContenderFailed, blame
from ..race import Contender, Run
from ..settings import ENGINE, HF, ONLINE, Online, blocks_of
from ..workload import Work
from .serve import serve

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching import ContinuousBatchingManager

NO_END = -1  # for transformers: no token ends a request


def contenders_of(setting: Online) -> tuple[list[Contender], dict[str, str]]:
    """Make all contenders that can run, one for each budget, and say why the others cannot."""
    makers: list[Callable[[int], Contender]] = []
    left_out: dict[str, str] = {}
    if ENGINE in setting.contenders:
        makers.append(partial(engine, setting, model_to_serve(setting.model, setting.dtype, setting.device, None)))
    if HF in setting.contenders:
        try:
            theirs = to_hf(load_model(setting.model, setting.device, getattr(torch, setting.dtype)))
            makers.append(partial(hf, setting, theirs))
        except ValueError as error:
            left_out[ONLINE[HF]] = str(error)
    return [make(budget) for budget in setting.budgets for make in makers], left_out


def engine(setting: Online, model: Model, budget: int) -> Contender:
    """Make a contender of the engine: a fresh one for each run, warmed up before the clock starts.

    It has blocks for all sequences that run at a time.
    """
    seqs = _seqs_within(setting, budget)
    num_blocks = blocks_of(seqs, _most_tokens(setting))

    def run(work: Work, stop: Stop) -> Run:
        with blame(ENGINE, f"its constructor, with a budget of {budget}"):
            fresh = Engine(
                model,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=seqs,
                max_num_batched_tokens=budget,
            )
            fresh.warm_up()
        with blame(ENGINE, f"a run with a budget of {budget}"):
            served = serve(fresh, work, stop)
        if fresh.blocks.num_free != num_blocks:
            raise ContenderFailed(f"{ENGINE} lost blocks: {fresh.blocks.num_free} of {num_blocks} are free after a run")
        return served

    return _contender(ENGINE, budget, seqs, run)


def _contender(name: str, budget: int, seqs: int, run: Callable[[Work, Stop], Run]) -> Contender:
    return Contender(name, f"{name}, budget {budget}", {"budget": budget, "max_num_seqs": seqs}, run)


def _seqs_within(setting: Online, budget: int) -> int:
    """Limit the number of sequences to the budget, as every sequence may need a token of a step."""
    return min(setting.max_num_seqs, len(setting.arrivals(None)), budget)


def _most_tokens(setting: Online) -> int:
    return setting.longest.prompt_len + setting.longest.output_len


def hf(setting: Online, model: PreTrainedModel, budget: int) -> Contender:
    """Make a contender of transformers' ContinuousBatchingManager: a fresh one for each run, in a thread of its own.

    Its pages, prefix sharing and all else have its own defaults, in a cache that holds all requests that may run.
    """
    name, seqs = ONLINE[HF], _seqs_within(setting, budget)

    def run(work: Work, stop: Stop) -> Run:
        with blame(name, f"a run with a budget of {budget}"), managed(model, setting, budget, seqs) as manager:
            return serve_hf(manager, work, stop)

    return _contender(name, budget, seqs, run)


@contextmanager
def managed(
    model: PreTrainedModel, setting: Online, budget: int, max_num_seqs: int
) -> Iterator[ContinuousBatchingManager]:
    """Yield a manager that takes requests; afterwards its thread has ended."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Older versions of transformers say block_size.
    page_size = getattr(ContinuousBatchingConfig, "page_size", None) or ContinuousBatchingConfig.block_size
    config = ContinuousBatchingConfig(
        num_blocks=blocks_of(max_num_seqs, _most_tokens(setting), page_size),
        max_batch_tokens=budget,
        max_requests_per_batch=max_num_seqs,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=NO_END, pad_token_id=0)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    manager.warmup()  # its cache is allocated
    manager.start()
    try:
        yield manager
    finally:
        manager.stop(hard_stop=True)
        manager.destroy()


def serve_hf(manager: ContinuousBatchingManager, work: Work, stop: Stop) -> Run:
    """Serve `work` with the manager as serve does with an engine.

    The times are the manager's own: when a request left its queue, and when it had each token. Raises RuntimeError for
    a request that failed, or whose times the manager lost.
    """
    clock = WallClock()
    came: list[SequenceTimes] = []
    for number, (arrival, prompt) in enumerate(work):
        while not stop() and clock.now() < arrival.seconds:
            clock.wait_until(arrival.seconds)
        if stop():
            break
        manager.add_request(
            prompt,
            request_id=str(number),
            max_new_tokens=arrival.output_len,
            record_timestamps=True,
            eos_token_id=NO_END,
        )
        came.append(SequenceTimes(clock.began + arrival.seconds))
    outputs: list[list[int]] = [[] for _ in came]
    for result in results(manager, len(came), stop):
        times = came[number := int(result.request_id)]
        if result.error or len(result.timestamps or ()) != len(result.generated_tokens):
            raise RuntimeError(f"request {number}: {result.error or 'it was started again, and its times were lost'}")
        times.first_scheduled, times.ended = result.lifespan
        times.steps += [StepRecord(finish=at) for at in result.timestamps]
        outputs[number] = result.generated_tokens
    finished = [times.has_ended for times in came]
    return Run(len(work), clock.began, came, outputs, finished)


def results(manager: ContinuousBatchingManager, number: int, stop: Stop) -> Iterator:
    while number and not stop():
        if result := manager.get_result(timeout=LOOK_S):
            yield result
            number -= 1
        elif not manager.is_running():
            raise RuntimeError("its thread has ended")
