"""walk_request: the way of one request through the engine, from its text to its last token, one frame per part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from course.display.board import CHAR, EDGE, Board, Cell, Frame, Line, Panel
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE
from roseinfer.models import load_model, load_tokenizer
from roseinfer.reference import reference_generate

from .engine_parts import (
    ATTENTION,
    CHOICE,
    DETOKENIZER,
    INPUTS,
    LAUNCH,
    OVERLAP,
    PARTS,
    POOL,
    QUEUE,
    SCHEDULER,
    TOKENIZER,
    WEIGHTS,
    Part,
    Rows,
    arrows,
    outlines,
    part_cell,
)

PROMPT_TEXT, NEW_TOKENS = "Return a new list of all", 4
BUDGET, BLOCK_SIZE, NUM_BLOCKS = 8, 4, 8
# A second request decodes all the time: it holds two blocks, and had so many tokens when this one came.
OTHER_BLOCKS, OTHER_CACHED = (0, 2), 3
FREE_BLOCKS = [block for block in range(NUM_BLOCKS) if block not in OTHER_BLOCKS]
PROMPT, DECODE, OTHER, WAITING = PALETTE[1], PALETTE[0], PALETTE[2], "#BBBBBB"
PAGE = Rows(overlap=26, overlap_height=20, way=70, way_height=42, group_end=146, below=172, below_height=84)
LIVE, STATE = 120, 20  # pixels: the top and the height of what a part has at hand
TEXT = 278  # pixels: the top of the request's text
LETTER = 12 * CHAR
LEGEND = (
    Cell(0, 0, "prompt tokens", PROMPT),
    Cell(0, 0, "decode tokens", DECODE),
    Cell(0, 0, "another request", OTHER),
    Cell(0, 0, "waiting", WAITING),
    Cell(0, 0, "reserved", outline=PROMPT, dashed=True),
    Cell(0, 0, "numbers: the lessons that build it", outline="none"),
)


@dataclass(frozen=True)
class Moment:
    """One frame of the walk. at: the parts that work. computed: tokens of the step. held: blocks of the request.

    step: how many steps have begun. cached and made: tokens of the request, in the pool and chosen so far.
    """

    at: tuple[Part, ...]
    says: str
    step: int = 0
    computed: int = 0
    held: int = 0
    cached: int = 0
    made: int = 0
    is_queued: bool = False
    is_written: bool = False

    @property
    def colour(self) -> str:
        return PROMPT if self.step < 2 else DECODE


def walk_request() -> Board:
    """Draw a frame per part that works on a request: its prompt, its first token, the decode loop, and the end."""
    tokenizer, model = load_tokenizer("tiny"), load_model("tiny", device="cpu")
    prompt_ids = tokenizer.encode(PROMPT_TEXT).ids
    [output_ids] = reference_generate(model, [prompt_ids], max_tokens=NEW_TOKENS)
    words = [tokenizer.decode([token]).replace(" ", "␣") for token in (*prompt_ids, *output_ids)]
    moments = list(_moments(len(prompt_ids)))
    frames = [_frame(number, moment, words, len(prompt_ids)) for number, moment in enumerate(moments)]
    cached = len(prompt_ids) + NEW_TOKENS - 1
    facts = [
        f"the engine on one page: a request of {len(prompt_ids)} prompt tokens and {NEW_TOKENS} new tokens takes "
        f"{NEW_TOKENS} steps of at most {BUDGET} tokens, and {_blocks(cached)} blocks of {BLOCK_SIZE} tokens",
        *(f"{part.name}: {part.does} (lesson {', '.join(part.lessons)})" for part in PARTS),
    ]
    return Board(frames, "\n".join(facts), "moment", shown=_first_token(moments), legend=LEGEND)


def _first_token(moments: list[Moment]) -> int:
    return next(number for number, moment in enumerate(moments) if moment.made)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def _moments(prompt_len: int) -> Iterator[Moment]:
    yield Moment((TOKENIZER,), f"A request arrives. The tokenizer turns its text into {prompt_len} tokens.")
    yield Moment((QUEUE,), "The request is queued. A policy chooses which request joins next.", is_queued=True)
    now = Moment((), "", step=1, computed=prompt_len, held=_blocks(prompt_len))
    fits = f"1 token of the request that decodes and {prompt_len} prompt tokens fit its budget of {BUDGET}"
    yield replace(now, at=(SCHEDULER,), says=f"The scheduler plans a step: {fits}. It reserves {now.held} blocks.")
    yield replace(now, at=(INPUTS,), says="The host writes the inputs: which blocks, which positions, which slots.")
    yield replace(now, at=(LAUNCH,), says="The host launches the step.")
    count = prompt_len + 1
    yield replace(now, at=(WEIGHTS,), says=f"The device reads all weights once, for all {count} tokens of the step.")
    now = replace(now, cached=prompt_len, is_written=True)
    kept = f"Attention writes K and V of {count} tokens to their slots, then reads all that is cached."
    yield replace(now, at=(ATTENTION, POOL), says=kept)
    yield replace(now, at=(CHOICE,), says="One token per sequence is chosen on the device.", made=1)
    yield replace(now, at=(DETOKENIZER,), says="The first token is text, and the request decodes from here on.", made=1)
    for made in range(1, NEW_TOKENS):
        yield from _decode(prompt_len + made, made)
    done = f"All {NEW_TOKENS} tokens are made: the request is finished, and its blocks are free again."
    yield Moment((DETOKENIZER, POOL), done, step=NEW_TOKENS, made=NEW_TOKENS, is_written=True)


def _decode(length: int, made: int) -> Iterator[Moment]:
    """Yield the moments of a decode step of the request: the first step part by part, later ones in two frames."""
    now = Moment((), "", made + 1, computed=1, held=_blocks(length), cached=length - 1, made=made)
    needs = "A new block is reserved for it" if length % BLOCK_SIZE == 1 else "Its block has a free slot"
    planned = f"The last token goes around the loop: 1 token of each request. {needs}."
    written = replace(now, cached=length, is_written=True)
    if made > 1:
        yield replace(now, at=(SCHEDULER, INPUTS, LAUNCH), says=planned)
        computed = (WEIGHTS, ATTENTION, POOL, CHOICE, DETOKENIZER)
        yield replace(written, at=computed, says="The device computes the next token.", made=made + 1)
        return
    yield replace(now, at=(SCHEDULER,), says=planned)
    yield replace(now, at=(INPUTS,), says="Only what has changed is written: a position, a slot, perhaps a block.")
    yield replace(
        now,
        at=(LAUNCH, OVERLAP),
        says="The host replays the graph of a decode step, and prepares the next step meanwhile.",
    )
    yield replace(now, at=(WEIGHTS,), says="All weights are read again, now for 2 tokens.")
    yield replace(written, at=(ATTENTION, POOL), says="One slot is written, and all tokens that are cached are read.")
    yield replace(written, at=(CHOICE, DETOKENIZER), says="The next token is chosen, and is text.", made=made + 1)


def _frame(number: int, moment: Moment, words: list[str], prompt_len: int) -> Frame:
    cells = [*outlines(PAGE)]
    for part in PARTS:
        look: dict[str, Any] = {"colour": moment.colour, "outline": INK} if part in moment.at else {}
        if part is POOL:
            look |= {"text": "", "note": "", "colour": ""}
        cells.append(part_cell(part, PAGE, **look))
    cells += [*_at_hand(moment, words, prompt_len), *_pool(moment, prompt_len), *_text(moment, words, prompt_len)]
    panel = Panel(cells, cell=(1, 1), lines=[*arrows(PAGE), *_loop(moment)])
    at = ", ".join(part.name for part in moment.at)
    return Frame([panel], f"{number}. {_phase(moment)}: {at}", moment.says)


def _phase(moment: Moment) -> str:
    if not moment.step:
        return "Arrival"
    if not moment.computed:
        return "End"
    return "Prefill" if moment.step == 1 else f"Decode step {moment.step - 1}"


def _loop(moment: Moment) -> list[Line]:
    """Draw the arrow of the decode loop, from the chosen token back to the scheduler, above all parts."""
    is_now = moment.step > 1 and SCHEDULER in moment.at
    colour = DECODE if is_now else EDGE
    start, end = (CHOICE.right + DETOKENIZER.left) / 2 + 4, SCHEDULER.center
    top, middle = 14, PAGE.middle(CHOICE)
    return [
        Line((middle, start), (top, start), colour),
        Line((top, start), (top, end), colour),
        Line((top, end), (PAGE.way - 2, end), colour, arrow=True),
    ]


def _at_hand(moment: Moment, words: list[str], prompt_len: int) -> Iterator[Cell]:
    """Show below each part what it is working with."""
    yield Cell(0, 520, "decode loop: one token per step", width=200, height=12, outline="none")
    if moment.is_queued:
        yield Cell(LIVE, QUEUE.left, f"{prompt_len} tokens", WAITING, width=QUEUE.width, height=STATE)
    slot = SCHEDULER.width / BUDGET
    for place in range(BUDGET):
        used = moment.computed + 1 if moment.computed else 0
        colour = OTHER if place == 0 else moment.colour
        yield Cell(LIVE, SCHEDULER.left + place * slot, "", colour if place < used else "", width=slot, height=STATE)
    if moment.held and SCHEDULER not in moment.at:
        row = " ".join(str(block) for block in FREE_BLOCKS[: moment.held])
        yield Cell(LIVE, INPUTS.left, row, moment.colour, width=INPUTS.width, height=STATE)
    if moment.computed and set(moment.at) & {WEIGHTS, ATTENTION, CHOICE}:
        yield Cell(
            LIVE, WEIGHTS.left, f"{moment.computed + 1} tokens", moment.colour, width=WEIGHTS.width, height=STATE
        )
    if CHOICE in moment.at or (DETOKENIZER in moment.at and moment.computed):
        part = DETOKENIZER if DETOKENIZER in moment.at else CHOICE
        word = words[prompt_len + moment.made - 1]
        yield Cell(LIVE, part.left, word, DECODE, width=part.width, height=STATE)


def _pool(moment: Moment, prompt_len: int) -> Iterator[Cell]:
    """Draw two lines of blocks, each block with its slots."""
    yield Cell(PAGE.below, POOL.left, f"{POOL.name} · {' '.join(POOL.lessons)}", width=190, height=22, outline="none")
    per_line, gap = NUM_BLOCKS // 2, 10
    pitch = (POOL.width - gap) / per_line
    other = OTHER_CACHED + moment.step - (0 if moment.is_written or not moment.step else 1)
    owner: dict[int, tuple[int, int]] = {block: (0, at) for at, block in enumerate(OTHER_BLOCKS)}
    owner |= {block: (1, at) for at, block in enumerate(FREE_BLOCKS[: moment.held])}
    for block in range(NUM_BLOCKS):
        line, column = divmod(block, per_line)
        top, left = PAGE.below + 24 + line * 28, POOL.left + gap + column * pitch
        yield Cell(top, left, block, width=18, height=22, outline="none")
        slot = (pitch - gap - 18) / BLOCK_SIZE
        whose, at = owner.get(block, (-1, 0))
        for place in range(BLOCK_SIZE):
            token = at * BLOCK_SIZE + place
            cached = (moment.cached if whose else other) if whose >= 0 else 0
            colour = "" if token >= cached else OTHER if not whose else PROMPT if token < prompt_len else DECODE
            is_reserved = whose == 1 and not colour
            yield Cell(
                top,
                left + 18 + place * slot,
                "",
                colour,
                width=slot,
                height=22,
                outline=PROMPT if is_reserved else "",
                dashed=is_reserved,
            )


def _text(moment: Moment, words: list[str], prompt_len: int) -> Iterator[Cell]:
    """Show the text of the request, token by token."""
    yield Cell(TEXT, 0, "the request:", width=96, height=24, outline="none")
    left = 100.0
    for number, word in enumerate(words[: prompt_len + moment.made]):
        width = len(word) * LETTER + 10
        yield Cell(TEXT, left, word, PROMPT if number < prompt_len else DECODE, width=width, height=24)
        left += width
