"""Checkers of lesson 05: a padded block table, looking a token up in it, and attention that reads through it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from torch import Tensor

from roseinfer.kernels.cases import paged_case
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, count_ops
from roseinfer.stage import Stage

from .attention_checks import Batch, draw_lengths, require_attention
from .contract_check import require_contract
from .drawn import Expected, compare, draw
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .stage_checks import require_tokens
from .tensor_checks import named_tensors, require_unchanged

LARGEST_ID = 70_000


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
    compare(
        answer,
        BATCHES,
        Expected(_table, {CUT_OFF: _cut_off}, _explain_table),
        lambda block_lists, max_blocks: f"block_lists={block_lists}, max_blocks={max_blocks}",
        _table_or_refusal,
    )


def _draw_batch(rng: Random) -> tuple[list[list[int]], int]:
    """One in four has a sequence that is too long, anywhere in the batch."""
    max_blocks, num_seqs = rng.randint(1, 6), rng.randint(1, 6)
    widths = [rng.randint(0, max_blocks) for _ in range(num_seqs)]
    if rng.random() < 0.25:
        widths[rng.randrange(num_seqs)] = max_blocks + rng.randint(1, 2)
    ids = iter(rng.sample(range(rng.choice((60, LARGEST_ID))), sum(widths)))
    return [[next(ids) for _ in range(width)] for width in widths], max_blocks


# (block ids of each sequence, max_blocks)
BATCHES = [
    ([[7], [4, 9]], 3),
    ([[5, 3, 8]], 3),  # full
    ([[6], []], 2),
    ([[0], [1, 2, 6], [9, 4], [5], [3]], 3),  # more sequences than blocks
    ([[2, 3], [1]], 1),  # the first is too long
    ([[1], [2, 3]], 1),
    ([[1], [2, 3], [4]], 1),
    ([[2, 3], [4, 5]], 1),  # all are, and equally so
    *draw(_draw_batch),
]


@dataclass(frozen=True)
class Refused:
    """A ValueError, with its text when it is the learner's."""

    text: str = ""


def _table_or_refusal(answer: Callable[..., object], block_lists: list[list[int]], max_blocks: int) -> object:
    given = copy.deepcopy(block_lists)
    try:
        got = answer(block_lists, max_blocks)
    except ValueError as error:
        got = Refused(str(error))
    except Exception as error:
        if isinstance(_table(given, max_blocks), Refused):
            raise Wrong(f"ends in {type(error).__name__}, expected a ValueError") from error
        raise
    if block_lists != given:
        raise Wrong(f"you have made block_lists {block_lists}: these lists belong to the engine")
    return got


def _table(block_lists: list[list[int]], max_blocks: int) -> Tensor | Refused:
    if any(len(blocks) > max_blocks for blocks in block_lists):
        return Refused()
    return _cut_off(block_lists, max_blocks)


def _cut_off(block_lists: list[list[int]], max_blocks: int) -> Tensor:
    return torch.tensor([(blocks + [0] * max_blocks)[:max_blocks] for blocks in block_lists], dtype=torch.int32)


CUT_OFF = "what does not fit is cut off, and that sequence forgets its newest tokens"


def _explain_table(got: object, want: Tensor | Refused) -> str | None:
    if isinstance(want, Tensor):
        if isinstance(got, Refused):
            return f"refused with ValueError({got.text!r}), but every sequence fits"
        return explain_tensor(got, want)
    if isinstance(got, Refused):
        return None
    returned = f"a table of shape {tuple(got.shape)}" if isinstance(got, Tensor) else f"{got!r}"
    return f"no ValueError, though a sequence has more than max_blocks; you return {returned}"


@exercise(
    "05.2",
    title="Look it up",
    minutes=10,
    difficulty=2,
    importance=4,
    stub="def look_up(block_table, positions, block_size): ...",
    task="Where does a token lie? `positions` [B] (int64) holds one token position a sequence, row i of `block_table` "
    "[B, max_blocks] (int32) belongs to sequence i. Return its `blocks` and `slots`, two int64 tensors [B], with the "
    "same few operations for any batch: no Python loop, no `.tolist()`, nothing read on the host. Leave both tensors "
    "as they are.",
    hints=(
        "position // block_size is the logical block: which column of the table to read. It is no block id yet.",
        "Each row is read in another column. Which function of torch takes one element a row, by an index of [B, 1]?",
        "Tensor.gather does, along dimension 1, with columns in int64. What it returns is [B, 1] still, in the table's "
        "dtype.",
    ),
)
def look_up(answer: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> None:
    compare(
        answer,
        PLACES,
        {
            "blocks": Expected(_blocks, BLOCK_MISTAKES, explain_tensor),
            "slots": Expected(_slots, explain=explain_tensor),
        },
        lambda table, positions, size: f"block_table={table}, positions={positions}, block_size={size}",
        _look_up_with,
    )
    few, many, wide = (_num_ops(answer, *shape) for shape in ((2, 4), (64, 4), (2, 64)))
    if many > few:
        raise Wrong(f"the places are right, but 2 sequences take {few} ops and 64 take {many}: let one gather read all")
    if wide > few:
        raise Wrong(f"the places are right, but 4 columns take {few} ops and 64 take {wide}: let one gather read all")
    _require_no_values_read(answer)


def _draw_places(rng: Random) -> tuple[list[list[int]], list[int], int]:
    size, width, num_seqs = rng.choice((1, 4, 7, 8, 10)), rng.randint(1, 6), rng.randint(1, 6)
    ids = iter(rng.sample(range(rng.choice((100, LARGEST_ID))), width * num_seqs))
    table = [[next(ids) for _ in range(width)] for _ in range(num_seqs)]
    return table, [rng.randrange(width * size) for _ in range(num_seqs)], size


# (block table, a position in each row, block size)
PLACES = [
    ([[5, 2, 7], [4, 6, 9], [8, 3, 1]], [8, 15, 3], 8),  # at the beginning and at the end of a block, and between
    ([[5, 2, 7]], [16], 8),
    ([[3], [0]], [0, 63], 64),
    *draw(_draw_places),
]


def _look_up_with(
    answer: Callable[..., object], table: list[list[int]], positions: list[int], size: int
) -> dict[str, Tensor]:
    given = torch.tensor(table, dtype=torch.int32), torch.tensor(positions)
    handed = [tensor.clone() for tensor in given]
    got = named_tensors(answer(*handed, size), "blocks", "slots")
    require_unchanged(given, handed, ("block_table", "positions"))
    return got


def _blocks(table: list[list[int]], positions: list[int], size: int) -> Tensor:
    return torch.tensor([row[position // size] for row, position in zip(table, positions, strict=True)])


def _slots(table: list[list[int]], positions: list[int], size: int) -> Tensor:
    return torch.tensor([position % size for position in positions])


BLOCK_MISTAKES = {
    "these are logical blocks, columns of the table; the table says where each of them lies": (
        lambda table, positions, size: torch.tensor([position // size for position in positions])
    ),
    "block_table[:, columns] reads every column in every row; row i wants its own column only": (
        lambda table, positions, size: torch.tensor([[row[p // size] for p in positions] for row in table])
    ),
    "every row is read in the same column": (
        lambda table, positions, size: torch.tensor([row[positions[0] // size] for row in table])
    ),
}


def _places(num_seqs: int, width: int) -> tuple[Tensor, Tensor, int]:
    table = torch.arange(width * num_seqs, dtype=torch.int32).view(num_seqs, width)
    return table, torch.arange(num_seqs) % 32, 8


def _num_ops(answer: Callable[..., object], num_seqs: int, width: int) -> int:
    return sum(count_ops(partial(answer, *_places(num_seqs, width))).values())


def _require_no_values_read(answer: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]) -> None:
    """On torch's meta device a tensor has a shape and no values: whoever reads one on the host fails there."""
    table, positions, size = _places(5, 4)
    try:
        got = answer(table.to("meta"), positions.to("meta"), size)
    except Exception as error:
        raise Wrong(
            "the places are right, but you read a tensor's values on the host (.tolist(), .item(), int(), numpy, a "
            f"loop over its elements): on a GPU every such read waits for the device ({type(error).__name__}: {error})"
        ) from error
    for name, tensor in zip(("blocks", "slots"), got, strict=True):
        if tensor.device.type != "meta":
            raise Wrong(f"{name} lies on {tensor.device}, expected the device of block_table and positions")


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
    "may be NaN. Attention only reads, and gives q's dtype. A ragged batch must not be padded: one call may copy at "
    f"most {COPIES} × the bytes that its sequences' own blocks hold.",
    hints=(
        "Loop over context_lens.tolist(). Sequence i with n tokens has -(-n // block_size) blocks, first in its row.",
        "k_cache[ids] is [blocks, block_size, H_kv, D]; flatten(0, 1)[:n] are its tokens in order. cat k[i : i + 1].",
        "F.scaled_dot_product_attention(q[i].unsqueeze(1), keys.transpose(0, 1), values.transpose(0, 1), "
        "enable_gqa=True) is [H, 1, D]; torch.stack all and squeeze(2).",
    ),
)
def paged_attention(answer: type[Stage], model: Model) -> None:
    if not (isinstance(answer, type) and issubclass(answer, Stage) and hasattr(answer, "attention")):
        raise Wrong(f"expected a subclass of BlockTable with an attention of its own, got {answer!r}")
    if not isinstance(inspect.getattr_static(answer, "attention"), staticmethod):
        raise Wrong("attention must be a @staticmethod of your class: it is called without self")
    require_attention(answer.attention, CASES, MISTAKES)
    require_tokens(answer, model)
    case = paged_case(RAGGED, num_kv_heads=2, block_size=8, head_dim=4)
    own = 2 * case.k_cache[1:].nbytes  # K and V; block 0 belongs to nobody
    copied = bytes_copied(lambda: answer.attention(*case)).copied
    if copied > COPIES * own:
        raise Wrong(
            f"right tokens, but a ragged batch copies {copied:,} bytes; its sequences' own blocks hold {own:,}, and "
            f"the budget is {COPIES} times that: does a short sequence pay for the longest one?"
        )
    require_contract(answer)


MISTAKES = {
    "new": "that is attention over the cached tokens alone: a new token reads itself too, its k and v",
    "scale": "the scores are not scaled: divide q.k by the square root of head_dim",
    "one block": "only each sequence's first block is read: its row of the table names more",
    "head": "query head h reads KV head h // group, with group = H // H_kv; yours reads h % H_kv",
}


def _draw_case(rng: Random) -> Batch:
    block_size, dtype = rng.choice((1, 3, 4, 8, 16)), rng.choice(("fp32", "fp32", "fp16", "bf16"))
    lengths = draw_lengths(rng, block_size, most=40)
    return lengths, rng.randint(1, 3), rng.randint(1, 3), rng.choice((2, 4, 6)), block_size, dtype


CASES: list[Batch] = [
    ([0], 1, 1, 4, 8, "fp32"),
    ([11, 8, 1, 17], 4, 1, 4, 8, "fp32"),  # several blocks, an edge exactly, one token
    ([9, 16, 3], 2, 2, 4, 8, "fp32"),  # query heads that share KV heads
    ([5, 0], 2, 1, 4, 8, "fp32"),
    ([9, 3], 2, 2, 4, 8, "bf16"),
    ([9, 3], 2, 2, 4, 8, "fp16"),
    ([300], 1, 1, 4, 4, "fp32"),  # 75 blocks
    *draw(_draw_case),
]
