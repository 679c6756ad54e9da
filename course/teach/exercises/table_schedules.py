"""Schedules for 06.3 and 10.3: sequences come, grow, go and come back; a learner's tables are compared at each step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

import torch

from roseinfer.arguments import counted
from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .drawn import draw, refusal
from .wrong import Wrong

NAMES = "ABCDE"
BLOCK_SIZE, NUM_BLOCKS = 4, 16
MOST_TOKENS = 12  # of a sequence that comes
MOST_SAID = 20  # calls of a schedule, the last ones

Call = tuple[str, str, int]  # "hold", a name, tokens; "free", a name, 0; "step" or "fail", the names of a batch, 0
Hold = Callable[[Any, Sequence, int], None]
Step = Callable[[Any, list[Sequence]], None]


def _hold(stage: Any, seq: Sequence, num_tokens: int) -> None:
    stage.tables.reserve({seq.seq_id: num_tokens})
    seq.num_cached_tokens = num_tokens


@torch.inference_mode()
def _step(stage: Any, seqs: list[Sequence]) -> None:
    stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in seqs})
    out = stage.tables_of(stage.host_buffer, seqs)
    stage.build_block_tables(seqs, out)
    for layer, table in enumerate(out.tolist()):
        for i, seq in enumerate(seqs):
            blocks = stage.tables.of(seq.seq_id, layer)
            if table[i] != stage.padded_row(blocks):
                got = table[i][: len(blocks)]
                raise Wrong(
                    f"after the last of these calls, row {i} of layer {layer} begins {got}; the blocks are {blocks}"
                )
    for seq in seqs:
        seq.num_cached_tokens += 1


def play(
    stage_class: type[Stage],
    model: Model,
    calls: tuple[Call, ...],
    hold: Hold = _hold,
    step: Step = _step,
) -> None:
    """Raise Wrong, with the calls up to there, if a step of a schedule builds a wrong table.

    hold(stage, seq, num_tokens) lets a sequence come; step(stage, seqs) builds the tables of a decode step and
    compares them. By default both work as in stages 06 to 09.
    """
    stage: Any = stage_class(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=len(NAMES))
    seqs = {name: Sequence([0]) for name in NAMES}
    for number, (kind, names, num_tokens) in enumerate(calls, start=1):
        batch = [seqs[name] for name in names]
        try:
            if kind == "hold":
                hold(stage, batch[0], num_tokens)
            elif kind == "free":
                stage.free(batch[0])
            elif kind == "fail":
                with patch.object(stage.tables, "of", side_effect=MemoryError), suppress(MemoryError):
                    step(stage, batch)
            else:
                step(stage, batch)
        except Exception as error:
            raise refusal(_described(calls[:number]), error) from error


def _described(calls: tuple[Call, ...]) -> str:
    said = {
        "hold": "hold {} with {}",
        "free": "free {}",
        "step": "step {}",
        "fail": "a step of {} that ends in an error",
    }
    last = calls[-MOST_SAID:]
    shown = [said[kind].format(", ".join(names), counted(tokens, "token")) for kind, names, tokens in last]
    more = [f"{len(calls) - MOST_SAID:,} calls"] if len(calls) > MOST_SAID else []
    return "; ".join(more + shown)


def describe_blocks(*calls: Call) -> str:
    return f"blocks of {BLOCK_SIZE} tokens"


def schedule(text: str) -> tuple[Call, ...]:
    """Parse "A12 AB !B -A": A comes with 12 tokens, a step decodes A and B, a step of B fails, A is freed."""
    calls: list[Call] = []
    for word in text.split():
        if word.startswith("-"):
            calls.append(("free", word[1], 0))
        elif word.startswith("!"):
            calls.append(("fail", word[1:], 0))
        elif word.isalpha():
            calls.append(("step", word, 0))
        else:
            calls.append(("hold", word[0], int(word[1:])))
    return tuple(calls)


def _draw_schedule(rng: Random) -> tuple[Call, ...]:
    """Draw a schedule with many steps, the last call among them; a step decodes some of the sequences in any order."""
    held: list[str] = []
    words = []
    for _ in range(rng.randint(3, 14)):
        absent = sorted(set(NAMES) - set(held))
        kind = rng.choice(("hold", "free", "step", "step"))
        if kind == "hold" and absent or not held:
            held.append(rng.choice(absent))
            words.append(f"{held[-1]}{rng.randint(1, MOST_TOKENS)}")
        elif kind == "free" and len(held) > 1:
            words.append(f"-{held.pop(rng.randrange(len(held)))}")
        else:
            words.append("".join(rng.sample(held, rng.randint(1, len(held)))))
    return schedule(" ".join([*words, "".join(held)]))


def comes_and_goes(names: str) -> tuple[Call, ...]:
    """Make a schedule so long that a hash of 8 bits repeats: a batch comes, into other blocks each time, and goes."""
    rng = Random(0)
    words = []
    for _ in range(1_500):
        comes = [f"{name}{rng.randint(1, MOST_TOKENS)}" for name in "BCD"] + [f"{name}9" for name in names]
        words += [*comes, names, *(f"-{call[0]}" for call in rng.sample(comes, len(comes)))]
    return schedule(" ".join(words))


SCHEDULES = [
    # A holds blocks 0, 1, 2; then it comes back with 0, 3, 2: as many, the same first and the same last.
    schedule("A9 A -A B1 C1 D1 E1 -D -E -B A9 A"),
    # And with 0, 2, 1: the same blocks in another order.
    schedule("A9 A -A B1 C1 D1 -C -D -B A9 A"),
    # And with 1, 0, 2 while B is decoded with it.
    schedule("A9 E1 AE -A B1 C1 D1 -D -B -C A9 AE"),
    # And with 0 to 3, 9, 5 to 8 for 0 to 8: the same first four, and the same last.
    schedule("A33 A -A B13 C1 D13 E1 -D -E -B A33 A"),
    # And with a version that is larger by 256.
    schedule(f"E1 A1 EA -A {'B1 -B ' * 255}A9 EA"),
    comes_and_goes("A"),
    # A step that needs a new row is repeated after an error.
    schedule("A4 !A A"),
    schedule("A3 A !A A"),
    *draw(_draw_schedule, 100),
]
