"""Contenders of an online race: the engine under a budget and a policy, and transformers' continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.drive import LOOK_S, WallClock
from roseinfer.engine.calls import Stop
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.llm.loading import model_to_serve
from roseinfer.models import Model, load_model, to_hf

from ..contenders import ContenderFailed, blame
from ..peers import wait_until_idle
from ..race_setting import ENGINE, RaceSetting
from ..settings import HF, NO_CACHE, ONLINE
from .serve import OnlineRun, serve
from .workload import Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching import ContinuousBatchingManager

FIRST_COME = "fcfs"
NO_END = -1  # for transformers: no token ends a request


@dataclass(frozen=True)
class OnlineContender:
    """A contender. run(work, stop): see serve. budget: most tokens of a step. max_num_seqs: most sequences."""

    name: str
    budget: int
    max_num_seqs: int
    run: Callable[[Work, Stop], OnlineRun]

    @property
    def called(self) -> str:
        return f"{self.name}, budget {self.budget}"


def contenders_of(
    setting: RaceSetting, dtype: str, names: Sequence[str], policies: Sequence[str], budgets: Sequence[int]
) -> tuple[list[OnlineContender], dict[str, str]]:
    """Make all contenders that can run, one for each budget, and say why the others cannot."""
    makers: list[Callable[[int], OnlineContender]] = []
    left_out: dict[str, str] = {}
    if ENGINE in names or NO_CACHE in names:
        model = model_to_serve(setting.spec, dtype, setting.device, None)
        for name in (name for name in names if name != HF):
            makers += [_engine_maker(setting, model, name, policy) for policy in policies]
    if HF in names:
        import torch

        try:
            theirs = to_hf(load_model(setting.spec, setting.device, getattr(torch, dtype)))
            makers.append(lambda budget: hf(setting, theirs, budget))
        except ValueError as error:
            left_out[ONLINE[HF]] = str(error)
    return [make(budget) for budget in budgets for make in makers], left_out


def _engine_maker(setting: RaceSetting, model: Model, name: str, policy: str) -> Callable[[int], OnlineContender]:
    return lambda budget: engine(setting, model, budget, policy, with_cache=name == ENGINE)


def engine(setting: RaceSetting, model: Model, budget: int, policy: str, with_cache: bool = True) -> OnlineContender:
    """Make a contender of the engine: a fresh one for each run, warmed up before the clock starts.

    It has blocks for all sequences that run at a time.
    """
    name = ONLINE[ENGINE if with_cache else NO_CACHE] + ("" if policy == FIRST_COME else f", {policy}")
    seqs = _seqs_within(setting, budget)
    num_blocks = setting.num_blocks(seqs)

    def run(work: Work, stop: Stop) -> OnlineRun:
        with blame(name, f"its constructor, with a budget of {budget}"):
            fresh = Engine(
                model,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_num_seqs=seqs,
                max_num_batched_tokens=budget,
                scheduling_policy=policy,
                enable_prefix_caching=with_cache,
            )
            fresh.warm_up()
        with blame(name, f"a run with a budget of {budget}"):
            served = serve(fresh, work, stop)
        if fresh.blocks.num_free != num_blocks:
            raise ContenderFailed(f"{name} lost blocks: {fresh.blocks.num_free} of {num_blocks} are free after a run")
        wait_until_idle()
        return served

    return OnlineContender(name, budget, seqs, run)


def _seqs_within(setting: RaceSetting, budget: int) -> int:
    """Limit the number of sequences to the budget, as every sequence may need a token of a step."""
    return min(setting.most_seqs, budget)


def hf(setting: RaceSetting, model: PreTrainedModel, budget: int) -> OnlineContender:
    """Make a contender of transformers' ContinuousBatchingManager: a fresh one for each run, in a thread of its own.

    Its pages, prefix sharing and all else have its own defaults, in a cache that holds all requests that may run.
    """
    name, seqs = ONLINE[HF], _seqs_within(setting, budget)

    def run(work: Work, stop: Stop) -> OnlineRun:
        with blame(name, f"a run with a budget of {budget}"), managed(model, setting, budget, seqs) as manager:
            served = serve_hf(manager, work, stop)
        wait_until_idle()
        return served

    return OnlineContender(name, budget, seqs, run)


@contextmanager
def managed(
    model: PreTrainedModel, setting: RaceSetting, budget: int, max_num_seqs: int
) -> Iterator[ContinuousBatchingManager]:
    """Yield a manager that takes requests; afterwards its thread has ended."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Older versions of transformers say block_size.
    page_size = getattr(ContinuousBatchingConfig, "page_size", None) or ContinuousBatchingConfig.block_size
    config = ContinuousBatchingConfig(
        num_blocks=setting.num_blocks(max_num_seqs, page_size),
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


def serve_hf(manager: ContinuousBatchingManager, work: Work, stop: Stop) -> OnlineRun:
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
        times.steps += [StepRecord(None, None, None, at) for at in result.timestamps]
        outputs[number] = result.generated_tokens
    finished = [times.ended is not None for times in came]
    return OnlineRun(len(work), clock.began, came, outputs, finished, steps=[], counters={})


def results(manager: ContinuousBatchingManager, number: int, stop: Stop) -> Iterator:
    while number and not stop():
        if result := manager.get_result(timeout=LOOK_S):
            yield result
            number -= 1
        elif not manager.is_running():
            raise RuntimeError("its thread has ended")
