"""The plain continuous loop that drives any stage: admit, prefill, decode, retire (Orca: Yu et al., 2022)."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Generator, Iterator
from typing import cast

from roseinfer.blocks import OutOfBlocks
from roseinfer.sampling_params import refuse_unresolved
from roseinfer.sequence import SamplingParams, Sequence, finish_reason
from roseinfer.stage import Stage


def generate(
    stage: Stage, prompts: abc.Sequence[abc.Sequence[int]], params: SamplingParams | abc.Sequence[SamplingParams]
) -> list[Sequence]:
    """Run all prompts to their end; return the finished sequences in the order of the prompts, every block free again.

    params: one for all, or one for each prompt. Raises ValueError for a request that can never fit, before any runs.
    """
    seqs = requests(prompts, params)
    for _ in stream(stage, seqs):
        pass
    return seqs


def requests(
    prompts: abc.Sequence[abc.Sequence[int]], params: SamplingParams | abc.Sequence[SamplingParams]
) -> list[Sequence]:
    """Return a new sequence for each prompt, for `stream`.

    Raises ValueError when there are not as many params, and for a prompt that is no list of token ids: a tokenizer
    makes one of a text.
    """
    if isinstance(params, SamplingParams):
        params = [params] * len(prompts)
    if len(params) != len(prompts):
        raise ValueError(f"params must be one SamplingParams or {len(prompts)} of them, got {len(params)}")
    return [Sequence(cast("list[int]", prompt), p) for prompt, p in zip(prompts, params, strict=True)]


def stream(stage: Stage, seqs: abc.Sequence[Sequence]) -> Generator[tuple[Sequence, int], None, None]:
    """Yield (sequence, token id) as tokens are made, many sequences interleaved, until all have finished.

    A waiting sequence joins as soon as a place and its worst case of blocks are free, so a running one never finds
    the pool empty; other streams on the same stage included. Whatever ends the loop (an error, Ctrl-C, the consumer
    closing it), every block is freed. Raises ValueError, before any runs, for a request that can never fit, that has
    finished already, that is named twice or that the stage holds for another caller.
    """
    check_startable(stage, seqs)
    waiting = deque(seqs)
    running: list[Sequence] = []
    try:
        while waiting or running:
            while waiting and has_room(stage, waiting[0]):
                seq = waiting.popleft()
                tokens = stage.first_tokens([seq])
                running.append(seq)
                stage.tables.promise(seq.seq_id, seq.max_len - 1)  # the last token is returned, never cached
                yield from _advance(stage, [seq], running, tokens)
            if running:
                yield from _advance(stage, list(running), running, stage.next_tokens(running))
            elif waiting:
                raise OutOfBlocks(
                    f"sequence {waiting[0].seq_id} cannot start: other sequences hold the blocks that it needs, or "
                    "max_num_seqs is reached"
                )
    finally:
        for seq in running:
            if stage.holds(seq):
                stage.free(seq)


def begin(stage: Stage, prompts: abc.Sequence[abc.Sequence[int]], params: SamplingParams) -> list[Sequence]:
    """Prefill every prompt and append its first token: a batch that is ready to decode. The caller frees it."""
    check_honoured(params)
    seqs = [Sequence(list(prompt), params) for prompt in prompts]
    for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
        seq.append(token)
    return seqs


def decode_step(stage: Stage, seqs: abc.Sequence[Sequence]) -> list[int]:
    """Run one step for sequences that are running: decode, sample, append. Return the new token ids."""
    tokens = stage.next_tokens(list(seqs))
    for seq, token in zip(seqs, tokens, strict=True):
        seq.append(token)
    return tokens


def check_startable(stage: Stage, seqs: abc.Sequence[Sequence]) -> None:
    """Raise ValueError for a request that `stream` cannot run to its end, or not as its params ask."""
    if len({seq.seq_id for seq in seqs}) != len(seqs):
        raise ValueError(f"seqs names a sequence twice: {[seq.seq_id for seq in seqs]}")
    for seq in seqs:
        if seq.finish_reason or len(seq) >= seq.max_len:
            raise ValueError(
                f"sequence {seq.seq_id} has finished (finish_reason={seq.finish_reason!r}, {len(seq.output_ids)} of "
                f"max_tokens={seq.params.max_tokens}): make a new one"
            )
        if stage.holds(seq):
            raise ValueError(f"sequence {seq.seq_id} is already held by {stage.name}: free it first")
        check_honoured(seq.params)
        stage.check_fits(seq)


def check_honoured(params: SamplingParams) -> None:
    """Raise ValueError for params that only roseinfer.LLM supports."""
    refuse_unresolved(params)
    for name in params.logit_changes():
        raise ValueError(f"{name}={getattr(params, name)!r} is for roseinfer.LLM: a stage leaves logits as they are")
    if params.logprobs is not None:
        raise ValueError(f"logprobs={params.logprobs} is for roseinfer.LLM: a stage reports none")


def has_room(stage: Stage, seq: Sequence) -> bool:
    """Whether a place is free and, with every running sequence grown to its end, enough blocks are too."""
    tables = stage.tables
    return len(tables) < stage.max_num_seqs and tables.blocks_for(seq.max_len - 1) <= tables.num_unpromised


def commit(stage: Stage, seqs: abc.Sequence[Sequence], tokens: list[int]) -> None:
    """Append each sequence's new token, and free the sequences that it finishes."""
    for seq, token in zip(seqs, tokens, strict=True):
        seq.append(token)
        seq.finish_reason = finish_reason(seq, stage.config.eos_token_ids)
        if seq.finish_reason:
            stage.free(seq)


def _advance(
    stage: Stage, seqs: list[Sequence], running: list[Sequence], tokens: list[int]
) -> Iterator[tuple[Sequence, int]]:
    """Commit a token of each sequence, retire those that it finishes, then hand the tokens out."""
    commit(stage, seqs, tokens)
    running[:] = [seq for seq in running if not seq.finish_reason]
    yield from zip(seqs, tokens, strict=True)
