"""Engine: requests in, tokens out. The loop of one step: schedule, run, commit."""

from __future__ import annotations

from roseinfer.arguments import require_count
from roseinfer.models import Model
from roseinfer.sequence import Sequence, refuse_samples, refuse_stop_strings
from roseinfer.stage import check_fits

from .block_manager import BlockManager
from .executors import Executor, OneBehind, Sync
from .kv_pool import KVPool
from .metrics import EngineMetrics, SequenceTimes
from .one_caller import OneCaller
from .policies import Policy, policy_for
from .prefix_cache import PrefixCache
from .runner import Runner
from .scheduler import Scheduler

# Tokens of one step, unless there are more sequences. Products are at their best from some hundreds on, and with more
# than this a CPU's caches no longer hold what one layer hands to the next.
STEP_TOKENS = 1024


class Engine:
    """model: from load_model. num_blocks: blocks of the KV pool, block_size tokens each. max_num_seqs: sequences that
    run at a time. max_model_len: tokens of the longest, None for as many as the model has positions.
    max_num_batched_tokens: of one step, None for STEP_TOKENS; a longer prompt is computed in chunks. scheduling_policy:
    the name of one in policies.py, or a Policy. enable_prefix_caching: sequences share full blocks with the same text.
    enforce_eager: decode without graphs. async_scheduling: a step is launched before the one before it is read; None
    for on a GPU, where it should pay, and nowhere else.

    Raises ValueError for a size below 1, a max_model_len above the model's, a max_num_batched_tokens below
    max_num_seqs, or an unknown policy.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int,
        block_size: int = 64,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
        scheduling_policy: str | Policy = "fcfs",
        enable_prefix_caching: bool = True,
        enforce_eager: bool = False,
        async_scheduling: bool | None = None,
    ) -> None:
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs}
        for name, value in sizes.items():
            require_count(name, value, at_least=1)
        self.max_model_len = checked_length(max_model_len, model)
        self.model = model
        max_num_tokens = checked_budget(max_num_batched_tokens, max_num_seqs)
        max_blocks = min(num_blocks, -(-self.max_model_len // block_size))
        cache = PrefixCache(block_size, f"{model.config} {model.dtype}".encode()) if enable_prefix_caching else None
        self.blocks = BlockManager(num_blocks, block_size, max_num_seqs, max_blocks, cache)
        self.pool = KVPool(model, num_blocks, block_size)
        policy = policy_for(scheduling_policy)
        self.scheduler = Scheduler(self.blocks, max_num_tokens, model.config.eos_token_ids, policy)
        overlap = model.device.type == "cuda" if async_scheduling is None else async_scheduling
        self.runner = Runner(model, self.pool, self.blocks, max_num_tokens, enforce_eager, overlap)
        self.metrics = EngineMetrics(self.scheduler)
        self.executor: Executor = (OneBehind if overlap else Sync)(self.scheduler, self.runner, self.metrics)
        self._one_caller = OneCaller("Engine")

    def warm_up(self) -> None:
        """Make ready what the first steps would have to make. Before the first request."""
        self.runner.warm_up()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, seq: Sequence, arrival: float | None = None) -> SequenceTimes:
        """Let a sequence wait for its turn. Its timestamps, which are filled as it runs; arrival: by metrics.clock,
        None for now.

        Raises ValueError for one that could never run to its end here, or that the policy cannot place, or has ended
        already, or is here; nothing of it stays behind.
        """
        refuse_stop_strings(seq.params)
        refuse_samples(seq.params)
        self.scheduler.policy.check(seq.params)
        check_fits(seq, self.model.config.vocab_size, self.max_model_len, self.blocks)
        if seq.finish_reason or len(seq) >= seq.max_len:
            raise ValueError(f"sequence {seq.seq_id} has ended (finish_reason={seq.finish_reason!r}): make a new one")
        with self._one_caller.call():
            if seq.num_cached_tokens or seq in self.scheduler:
                raise ValueError(f"sequence {seq.seq_id} was added already")
            self.scheduler.add(seq)
            return self.metrics.begin(seq, arrival)

    def step(self) -> list[Sequence]:
        """One step; the sequences that have one token more. Those whose prompts are not done yet have none, and with
        async_scheduling no sequence has one after the first step, which is only launched.

        A sequence whose logits are not finite ends: it is among those, with finish_reason "error" and a message in
        `error`. On an error of the whole step nothing is appended, and the next call makes the same step again. Raises
        ValueError without work.
        """
        with self._one_caller.call():
            if not self.has_work:
                raise ValueError("step needs a sequence that waits or runs: add one first")
            return self.executor.step()

    def abort(self, seq: Sequence) -> None:
        """End a sequence now, its blocks given back. Raises ValueError for one that has ended or was never added."""
        with self._one_caller.call():
            self.scheduler.abort(seq)
            self.metrics.end(seq)
            if not self.scheduler.has_work:
                self.executor.rest()


def checked_budget(max_num_batched_tokens: int | None, max_num_seqs: int) -> int:
    if max_num_batched_tokens is None:
        return max(STEP_TOKENS, max_num_seqs)
    require_count("max_num_batched_tokens", max_num_batched_tokens, at_least=1)
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens={max_num_batched_tokens} is less than a step of max_num_seqs={max_num_seqs} "
            "sequences may need, one token each: make it larger, or max_num_seqs smaller"
        )
    return max_num_batched_tokens


def checked_length(max_model_len: int | None, model: Model) -> int:
    most = model.config.max_model_len
    if max_model_len is None:
        return most
    require_count("max_model_len", max_model_len, at_least=1)
    if max_model_len > most:
        raise ValueError(f"max_model_len={max_model_len} is more positions than the model has, allowed: at most {most}")
    return max_model_len
