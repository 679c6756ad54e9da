"""Messages of broken promises: AssertionErrors in the terms of the stage's author."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from roseinfer.arguments import counted
from roseinfer.blocks import BlockTables
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage


def require_tokens(seqs: list[Sequence], want: list[list[int]], oracle: str = "the reference") -> None:
    """Require that all outputs equal `want`; the error names a sequence, its prompt's length, its first wrong token."""
    for i, (seq, tokens) in enumerate(zip(seqs, want, strict=True)):
        got = seq.output_ids
        if got != tokens:
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, tokens, strict=False)))
            token = f"token {same} is {got[same]}" if same < len(got) else f"it ends after {same} tokens"
            right = f"expected {tokens[same]}" if same < len(tokens) else f"expected {len(tokens)} tokens in all"
            prompt = f"sequence {i} of {len(seqs)}, prompt of {counted(seq.num_prompt_tokens, 'token')}"
            before = f"; the {same} before are right" if same > 1 else ""
            raise AssertionError(f"{prompt}: {token}, {right} as {oracle} has it{before}")


def require_logits(got: Tensor, want: Tensor, tolerance: float, where: str) -> None:
    """Require that the logits agree within tolerance, which is relative to the largest logit where that is above 1."""
    allowed = tolerance * max(1.0, float(want.abs().max()))
    error = float((got - want).abs().max())
    assert error <= allowed, f"{where} a logit is off by {error:.2g} from the reference, allowed {allowed:.2g}"


def require_all_free(stage: Stage, when: str) -> None:
    """Require that every block is free and no sequence is held. `when`: such as "with both sequences freed"."""
    require_one_owner(stage.tables)
    held = len(stage.tables)
    free, total = stage.num_free_blocks, stage.tables.num_blocks
    assert (held, free) == (0, total), (
        f"{when}, {free} of {total} blocks are free and {counted(held, 'sequence')} still held. "
        "Does free call Stage.free?"
    )


def require_one_owner(tables: BlockTables) -> None:
    """Require that every block of every table (layer) is free once or held once; the error names the wrong block."""
    for layer in range(tables.num_tables):
        blocks = tables.free_blocks(layer) + [b for seq_id in tables.seq_ids for b in tables.of(seq_id, layer)]
        if sorted(blocks) == list(range(tables.num_blocks)):
            continue
        owners: dict[int, list[str]] = {block: [] for block in range(tables.num_blocks)}
        held = [(f"sequence {i}", tables.of(seq_id, layer)) for i, seq_id in enumerate(tables.seq_ids)]
        for owner, blocks in [("free", tables.free_blocks(layer)), *held]:
            for block in blocks:
                assert block in owners, f"layer {layer}: {owner} has block {block}, of {tables.num_blocks} there are"
                owners[block].append(owner)
        for block, found in owners.items():
            assert found, f"layer {layer}: block {block} is lost: it is neither free nor held by a sequence"
            twice = "free twice" if found == ["free", "free"] else f"owned twice: by {' and by '.join(found)}"
            assert len(found) == 1, f"layer {layer}: block {block} is {twice}"


@contextmanager
def refused(misuse: str, *says: str, error: type[Exception] = ValueError) -> Iterator[None]:
    """Require that the body raises `error` with a message that contains all of `says`."""
    wanted = f"wanted {an(error.__name__)} that says {' and '.join(map(repr, says))}"
    try:
        yield
    except error as refusal:
        assert all(text in str(refusal) for text in says), f"{misuse} is refused by {refusal!r}; {wanted}"
        return
    except Exception as other:
        raise AssertionError(f"{misuse} ends in {an(type(other).__name__)}; {wanted}") from other
    raise AssertionError(f"{misuse} is not refused; {wanted}")


def lengths_text(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, lengths))


def an(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"
