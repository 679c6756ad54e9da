"""Checkers of lesson 05: a padded block table, looking a token up in it, and attention that reads through it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from roseinfer.kernels.cases import PagedCase, paged_case
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, count_ops
from roseinfer.stage import Stage

from .exercise import Wrong, exercise
from .explain import explain_tensor
from .kernel_checks import plain_attention
from .stage_checks import require_tokens

BATCHES = ([[7], [4, 9]], [[5, 3, 8]], [[0], [1, 2, 6], [9, 4]])
MAX_BLOCKS = 3


@exercise(
    "05.1",
    title="A padded block table",
    minutes=5,
    difficulty=1,
    importance=4,
    stub="def build_table(block_lists, max_blocks): ...",
    task="`block_lists[i]` holds the block ids of sequence i, in token order. Return the table [B, max_blocks] in "
    "int32, zeros behind each sequence's own ids. A sequence with more than `max_blocks` is refused with a "
    "ValueError: nothing is cut off. The lists belong to the engine, so leave them as they are.",
    hints=(
        "torch.tensor wants rows of one length: fill each up with zeros first.",
        "blocks + [0] * n makes a new list; blocks += ... and blocks.append(...) change the one you were given.",
        "[0] * -1 is an empty list, so a list that is too long stays too long: look at len(blocks) first, and raise.",
    ),
)
def build_table(answer: Callable[[list[list[int]], int], Tensor]) -> None:
    for batch in BATCHES:
        given = [list(blocks) for blocks in batch]
        got = answer(given, MAX_BLOCKS)
        if given != batch:
            raise Wrong(f"block_lists was {batch}, and you have made it {given}: these lists belong to the engine")
        want = torch.zeros(len(batch), MAX_BLOCKS, dtype=torch.int32)
        for row, blocks in zip(want, batch, strict=True):
            row[: len(blocks)] = torch.tensor(blocks)
        if message := explain_tensor(got, want):
            raise Wrong(f"block_lists={batch}, max_blocks={MAX_BLOCKS}: {message}")
    _require_refusal(answer)


def _require_refusal(answer: Callable[[list[list[int]], int], Tensor]) -> None:
    for too_many in ([[1], [2, 3, 4, 5]], [[2, 3, 4, 5], [6, 7, 8, 9]]):
        try:
            table = answer(too_many, MAX_BLOCKS)
        except ValueError as error:
            if "4" not in str(error) or str(MAX_BLOCKS) not in str(error):
                text = f"`{error}`" if str(error) else "a ValueError without a word"
                raise Wrong(f"refused, but {text} does not say how many blocks came and how many may") from None
            continue
        cut = " and block 5 is cut off: that sequence forgets its newest tokens" if table is not None else ""
        raise Wrong(f"block_lists={too_many}, max_blocks={MAX_BLOCKS}: no ValueError{cut}")


@exercise(
    "05.2",
    title="Look it up",
    minutes=10,
    difficulty=2,
    importance=4,
    stub="def look_up(block_table, positions, block_size): ...",
    task="Where does a token lie? `positions` [B] (int64) holds one token position a sequence, row i of `block_table` "
    "[B, max_blocks] (int32) belongs to sequence i. Return its `blocks` and `slots`, two int64 tensors [B], with the "
    "same few operations for any batch: no Python loop, no `.tolist()`.",
    hints=(
        "position // block_size is the logical block: which column of the table to read. It is no block id yet.",
        "Each row is read in another column: block_table.gather(1, columns), with columns [B, 1] in int64.",
        "blocks = block_table.gather(1, (positions // block_size)[:, None]).squeeze(1).long()",
    ),
)
def look_up(answer: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> None:
    for batch_size, block_size in ((3, 8), (1, 8), (5, 64)):
        table, positions = _table_and_positions(batch_size, block_size)
        columns, slots = positions // block_size, positions % block_size
        blocks = torch.stack([row[column] for row, column in zip(table, columns, strict=True)]).long()
        got = answer(table.clone(), positions.clone(), block_size)
        where = f"block_size={block_size}, positions={positions.tolist()}"
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(f"expected a pair (blocks, slots), got {got!r}")
        _check_blocks(got[0], blocks, columns, where)
        if message := explain_tensor(got[1], slots):
            raise Wrong(f"{where}: blocks are right; slots: {message}")
    few, many = (_ops_of_look_up(answer, batch_size) for batch_size in (2, 64))
    if many > few:
        raise Wrong(f"the places are right, but 2 sequences take {few} ops and 64 take {many}: let one gather read all")


def _table_and_positions(batch_size: int, block_size: int) -> tuple[Tensor, Tensor]:
    """A table of 4 columns with shuffled ids, and positions at the edges of blocks and between them."""
    generator = torch.Generator().manual_seed(batch_size)
    table = torch.randperm(4 * batch_size, generator=generator).view(batch_size, 4).int() + 4
    places = [block_size, 2 * block_size - 1, 3, 3 * block_size, 0]
    return table, torch.tensor([places[i % len(places)] for i in range(batch_size)])


def _check_blocks(got: object, want: Tensor, columns: Tensor, where: str) -> None:
    if torch.is_tensor(got) and got.shape == want.shape and torch.equal(got.long(), columns):
        raise Wrong(f"{where}: these are logical blocks, {columns.tolist()}; the table says where each of them lies")
    if torch.is_tensor(got) and got.shape == (len(want), len(want)) != (1, 1):
        raise Wrong(
            f"{where}: blocks has shape {tuple(got.shape)}: block_table[:, columns] reads every column in every row; "
            "row i wants its own column only"
        )
    if message := explain_tensor(got, want):
        raise Wrong(f"{where}: blocks: {message}")


def _ops_of_look_up(answer: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]], batch_size: int) -> int:
    table, positions = _table_and_positions(batch_size, 8)
    return sum(count_ops(lambda: answer(table, positions, 8)).values())


MISTAKES = {
    "new": "that is attention over the cached tokens alone: a new token reads itself too, its k and v",
    "scale": "the scores are not scaled: divide q.k by the square root of head_dim",
    "one block": "only each sequence's first block is read: its row of the table names more",
    "head": "query head h reads KV head h // group, with group = H // H_kv; yours reads h % H_kv",
}
# Several blocks; an edge exactly; one token; nothing cached.
CASES = {
    "equal heads": {"context_lens": [11, 8, 1, 17], "num_kv_heads": 4},
    "grouped heads": {"context_lens": [9, 16, 3], "num_kv_heads": 2, "group": 2},
    "nothing cached": {"context_lens": [5, 0], "num_kv_heads": 2},
}
SMALL = {"block_size": 8, "head_dim": 4}
RAGGED = [1] * 15 + [248]
COPIES = 6


@exercise(
    "05.3",
    title="Your own paged attention",
    minutes=30,
    difficulty=3,
    importance=5,
    stub="class MyPaged(BlockTable): ...",
    task="Give `BlockTable` your attention, a static method with the arguments of `paged_attention_reference`: for "
    "each sequence, take its own blocks from the pool, keep its `context_lens` tokens, put the new token's k and v "
    "behind them, and attend with an ordinary softmax. Pool and table hold more than is yours: what was never written "
    "may be NaN. A ragged batch must not be padded: one call may copy at most "
    f"{COPIES} × the bytes that its sequences' own blocks hold.",
    hints=(
        "Loop over context_lens.tolist(). Sequence i with n tokens has -(-n // block_size) blocks, first in its row.",
        "k_cache[ids] is [blocks, block_size, H_kv, D]; flatten(0, 1)[:n] are its tokens in order. cat k[i : i + 1].",
        "F.scaled_dot_product_attention(q[i].unsqueeze(1), keys.transpose(0, 1), values.transpose(0, 1), "
        "enable_gqa=True) is [H, 1, D]; torch.stack all and squeeze(2).",
    ),
)
def paged_attention(answer: type[Stage], model: Model) -> None:
    if not (isinstance(answer, type) and hasattr(answer, "attention")):
        raise Wrong(f"expected a subclass of BlockTable with an attention of its own, got {answer!r}")
    if not isinstance(vars(answer).get("attention"), staticmethod):
        raise Wrong("attention must be a @staticmethod of your class: it is called without self")
    for name, shape in CASES.items():
        _check_attention(answer.attention, name, paged_case(**shape, **SMALL))
    require_tokens(answer, model)
    case = paged_case(RAGGED, num_kv_heads=2, **SMALL)
    own = 2 * case.k_cache[1:].nbytes  # K and V; block 0 belongs to nobody
    copied = bytes_copied(lambda: answer.attention(*case)).copied
    if copied > COPIES * own:
        raise Wrong(
            f"right tokens, but a ragged batch copies {copied:,} bytes; its sequences' own blocks hold {own:,}, and "
            f"the budget is {COPIES} times that: does a short sequence pay for the longest one?"
        )


def _check_attention(attention: Callable[..., Tensor], name: str, case: PagedCase) -> None:
    got, want = attention(*(tensor.clone() for tensor in case)), plain_attention(case).float()
    message = explain_tensor(got, want)
    if message is None:
        return
    where = f"{name}, context_lens={case.context_lens.tolist()}"
    if torch.is_tensor(got) and got.shape == want.shape:
        if got.isnan().any():
            raise Wrong(
                f"{where}: {message}; NaN lies where nothing was written: in slots behind context_lens, and in blocks "
                "that the sequence's row does not name"
            )
        for mistake, reason in MISTAKES.items():
            if torch.allclose(got, plain_attention(case, mistake).float(), rtol=1e-4, atol=1e-5):
                raise Wrong(f"{where}: {reason}")
    raise Wrong(f"{where}: {message}")
