"""Engine: requests in, tokens out. The loop of one step: schedule, run, commit."""

from __future__ import annotations

from roseinfer.arguments import require_count
from roseinfer.models import Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence, refuse_stop_strings
from roseinfer.stage import check_fits

from .block_manager import BlockManager
from .kv_pool import KVPool
from .runner import Runner
from .scheduler import Scheduler

STEP_TOKENS = 4096  # of one step, unless one prompt or batch may have more: activations grow with it, speed hardly


class Engine:
    """model: from load_model. num_blocks: blocks of the KV pool, block_size tokens each. max_num_seqs: sequences that
    run at a time. max_model_len: tokens of the longest, None for as many as the model has positions. enforce_eager:
    decode without graphs.

    Raises ValueError for a size below 1, or a max_model_len above the model's.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int,
        block_size: int = 64,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        enforce_eager: bool = False,
    ) -> None:
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs}
        for name, value in sizes.items():
            require_count(name, value, at_least=1)
        self.max_model_len = checked_length(max_model_len, model)
        self.model = model
        max_num_tokens = most_step_tokens(self.max_model_len, max_num_seqs)
        max_blocks = min(num_blocks, -(-self.max_model_len // block_size))
        self.blocks = BlockManager(num_blocks, block_size, max_num_seqs, max_blocks)
        self.pool = KVPool(model, num_blocks, block_size)
        self.scheduler = Scheduler(self.blocks, max_num_tokens, model.config.eos_token_ids)
        self.runner = Runner(model, self.pool, self.blocks, max_num_tokens, enforce_eager)

    def warm_up(self) -> None:
        """Make ready what the first steps would have to make. Before the first request."""
        self.runner.warm_up()

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def add(self, seq: Sequence) -> None:
        """Let a sequence wait for its turn. Raises ValueError for one that could never run to its end here, or has
        ended already, or is here; nothing of it stays behind."""
        refuse_stop_strings(seq.params)
        check_fits(seq, self.model.config.vocab_size, self.max_model_len, self.blocks)
        if seq.finish_reason or len(seq) >= seq.max_len:
            raise ValueError(f"sequence {seq.seq_id} has ended (finish_reason={seq.finish_reason!r}): make a new one")
        if seq.num_cached_tokens or seq in self.scheduler.waiting or seq in self.scheduler.running:
            raise ValueError(f"sequence {seq.seq_id} was added already")
        self.scheduler.add(seq)

    def step(self) -> list[Sequence]:
        """One step for all that run; every sequence of it has one token more, or has ended.

        On an error of the model nothing is appended, and the next call does the same step again. Raises ValueError when
        logits are not finite.
        """
        with span("roseinfer.engine.schedule"):
            seqs, num_new = self.scheduler.schedule()
        tokens = self.runner.run(seqs, num_new)
        with span("roseinfer.engine.commit"):
            self.scheduler.commit(seqs, num_new, tokens)
        return seqs

    def abort(self, seq: Sequence) -> None:
        """End a sequence now, its blocks given back. Raises ValueError for one that has ended or was never added."""
        self.scheduler.abort(seq)


def most_step_tokens(max_model_len: int, max_num_seqs: int) -> int:
    """Of one step: STEP_TOKENS, or a prompt, or a token of each sequence."""
    return max(STEP_TOKENS, max_model_len, max_num_seqs)


def checked_length(max_model_len: int | None, model: Model) -> int:
    most = model.config.max_model_len
    if max_model_len is None:
        return most
    require_count("max_model_len", max_model_len, at_least=1)
    if max_model_len > most:
        raise ValueError(f"max_model_len={max_model_len} is more positions than the model has, allowed: at most {most}")
    return max_model_len
