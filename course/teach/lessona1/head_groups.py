"""draw_head_groups: which query heads read which KV head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from course.display.board import Board, Cell, Frame, Line, Panel
from roseinfer.display.figure import PALETTE
from roseinfer.models import ModelConfig

WIDTH, ROW = 50, 26  # pixels
COLOURS = tuple(PALETTE[i] for i in (4, 1, 2, 3, 5))  # by KV head; their lines show on both themes


def draw_head_groups(configs: Mapping[str, ModelConfig]) -> Board:
    """Draw the query heads of each model above its KV heads, with a line from each to the one that it reads.

    configs: by the names from which the reader chooses, the first one shown first.

    Raises ValueError without a model.
    """
    text = "\n".join(f"{name}: {_text(config)}" for name, config in configs.items())
    return Board({name: [_frame(name, config)] for name, config in configs.items()}, text, choice_label="model")


def _text(c: ModelConfig) -> str:
    group = c.num_heads // c.num_kv_heads
    kept, all_heads = (2 * heads * c.head_dim for heads in (c.num_kv_heads, c.num_heads))
    takes = f"K and V take {kept:,} numbers per token and layer"
    if group == 1:
        return f"{c.num_heads} query heads, each with a KV head of its own; {takes}"
    return (
        f"{c.num_heads} query heads, {group} on each of {c.num_kv_heads} KV heads; {takes}; with a KV head per query "
        f"head they would take {all_heads:,}"
    )


def _frame(name: str, config: ModelConfig) -> Frame:
    group = config.num_heads // config.num_kv_heads
    queries = [Cell(0, head, f"Q {head}", _colour(head // group)) for head in range(config.num_heads)]
    return Frame(
        [
            Panel(
                [*queries, *_kv_heads(config)],
                rows=["query heads", "", "K", "V"],
                cell=(WIDTH, ROW),
                lines=[
                    Line((1, head + 0.5), (2, (head // group + 0.5) * group), _colour(head // group), arrow=True)
                    for head in range(config.num_heads)
                ],
            )
        ],
        name,
        f"{_text(config)}.",
    )


def _kv_heads(config: ModelConfig) -> Iterator[Cell]:
    """Draw each KV head below the middle of its group."""
    group = config.num_heads // config.num_kv_heads
    for head in range(config.num_kv_heads):
        for row, name in ((2, "K"), (3, "V")):
            yield Cell(row, (head + 0.5) * group - 0.5, f"{name} {head}", _colour(head))


def _colour(kv_head: int) -> str:
    return COLOURS[kv_head % len(COLOURS)]
