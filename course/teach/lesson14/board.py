"""walk_board: the scheduler as a board. One frame per step: requests that wait, tokens computed, blocks held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from course.display.board import Board, Frame

from ..measure.request_run import DECODE, PROMPT, RECOMPUTED, Run, RunStep
from ..measure.step_pool import PoolSize, StepPool
from .board_panels import LEGEND, pool_panel, queue_panel, step_panel

MOST_BLOCKS = 512
MOST_NAMED = 3  # prompts of a step


@dataclass(frozen=True)
class BoardStep:
    """A step of a run as the board shows it.

    waiting: tokens of each waiting request, the next one first. preempted: those of them that have been preempted.
    ending: requests that get their last token in the step.
    """

    number: int
    step: RunStep
    pool: StepPool
    size: PoolSize
    budget: int
    waiting: dict[int, int]
    preempted: set[int]
    ending: set[int]

    @property
    def num_held(self) -> int:
        return sum(len(held.blocks) for held in self.pool.held.values())


def walk_board(runs: Run | Mapping[str, Run], shown: int | None = None) -> Board:
    """Show a frame per step: the queue, the step's tokens in a box of the budget's size, and the blocks of the pool.

    runs: as record_run gives them of a TokenBudget, by the clock of steps or of a function; several by their names, to
    choose from. shown: the frame of the picture; None for one with a preemption, or with many blocks held.
    text/plain: the sums of each run, and its preemptions. Raises ValueError for a run whose queue and pool were not
    recorded, one with shared blocks, and one with more than 512 blocks.
    """
    named = runs if isinstance(runs, Mapping) else {"": runs}
    steps = {name: list(_board_steps(name, run)) for name, run in named.items()}
    if not steps:
        raise ValueError("runs must hold at least one run, got none")
    frames = {name: [_frame(step) for step in own] for name, own in steps.items()}
    if shown is None:
        shown = max(next(iter(steps.values())), key=_has_much_to_show).number
    text = "\n".join(_facts(name or run.name, run, steps[name]) for name, run in named.items())
    return Board(frames, text, shown=shown, legend=LEGEND)


def _board_steps(name: str, run: Run) -> Iterator[BoardStep]:
    of = f" {name!r}" if name else ""
    if not isinstance(run, Run) or not run.pool_size or run.budget is None:
        got = f"{run.name} by the clock of {run.clock}" if isinstance(run, Run) else repr(run)
        raise ValueError(
            f"run{of} must be of a stage with a token budget, by the clock of steps or a function, got {got}"
        )
    if run.pool_size.num_blocks > MOST_BLOCKS:
        raise ValueError(f"run{of} must have at most {MOST_BLOCKS} blocks to be drawn, got {run.pool_size.num_blocks}")
    num_tokens = Counter({place: request.arrival.prompt_len for place, request in enumerate(run.requests)})
    preempted: set[int] = set()
    for number, step in enumerate(run.steps):
        assert step.pool, "each step of a run with a pool_size has one"
        blocks = [block for held in step.pool.held.values() for block in held.blocks]
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"run{of} must share no blocks, and in step {number} it does: see walk_prefix_tree")
        preempted = (preempted | set(step.pool.given_back)) & set(step.pool.waiting)
        waiting = {request: num_tokens[request] for request in step.pool.waiting}
        num_tokens.update(row.request for row in step.rows if row.got_token)
        ending = {row.request for row in step.rows if num_tokens[row.request] == len(run.requests[row.request].seq)}
        yield BoardStep(number, step, step.pool, run.pool_size, run.budget, waiting, preempted, ending)


def _has_much_to_show(step: BoardStep) -> tuple[bool, bool, int]:
    return bool(step.pool.given_back), bool(step.waiting), step.num_held


def _frame(step: BoardStep) -> Frame:
    panels = [
        queue_panel(_queue_title(step), step.waiting, step.preempted),
        step_panel(_step_title(step), step.step.rows, step.budget),
        pool_panel(_pool_title(step), step.pool, step.size, step.step.rows, step.ending),
    ]
    begun = step.step.times.scheduled
    at = "" if begun == step.number else f", at {begun:g} on the clock"
    return Frame(panels, f"step {step.number}{at}: {_computes(step)}")


def _computes(step: BoardStep) -> str:
    """Say what the step computes: "3 decode, 61 of request 3's prompt"."""
    decode = step.step.tokens_of(DECODE)
    parts = [f"{decode} decode"] if decode else []
    rows = [row for row in step.step.rows if row.kind != DECODE]
    if len(rows) <= MOST_NAMED:
        told = {PROMPT: "{} of request {}'s prompt", RECOMPUTED: "{} of request {} again"}
        parts += [told[row.kind].format(row.num_new, row.request) for row in rows]
    else:
        many = Counter(row.kind for row in rows)
        parts += [f"{step.step.tokens_of(kind)} {kind} of {n} requests" for kind, n in many.items()]
    return ", ".join(parts)


def _queue_title(step: BoardStep) -> str:
    if not step.waiting:
        return "Queue: empty"
    return f"Queue: {len(step.waiting)} waiting; request {next(iter(step.waiting))} is next: {_why_not_now(step)}"


def _why_not_now(step: BoardStep) -> str:
    """Say what the next request lacks; reasons are tried in the order in which stage 14 checks them."""
    needed = -(-next(iter(step.waiting.values())) // step.size.block_size)
    free = step.size.num_blocks - step.num_held
    if step.step.num_tokens == step.budget:
        return "the budget is used up"
    if step.pool.given_back:
        return "a step that preempts admits none"
    if len(step.pool.held) == step.size.max_num_seqs:
        return f"max_num_seqs={step.size.max_num_seqs} requests run"
    return f"it needs {needed} {_plural('block', needed)}, {free} {'is' if free == 1 else 'are'} free"


def _step_title(step: BoardStep) -> str:
    return f"Step: {step.step.num_tokens} of {step.budget} tokens; numbers are requests"


def _pool_title(step: BoardStep) -> str:
    parts = [f"Pool: {step.num_held} of {step.size.num_blocks} blocks of {step.size.block_size} slots held"]
    if step.pool.given_back:
        parts.append(f"{_gave_back(step.pool.given_back)} before the step")
    if step.ending:
        num_blocks = sum(len(step.pool.held[request].blocks) for request in step.ending)
        after = f"{num_blocks} {_plural('block', num_blocks)} free again after the step"
        parts.append(f"{_requests(sorted(step.ending))} finished, {after}")
    return "; ".join(parts)


def _gave_back(given_back: Mapping[int, int]) -> str:
    num_blocks = sum(given_back.values())
    return f"{_requests(given_back)} preempted, {num_blocks} {_plural('block', num_blocks)} given back"


def _requests(places: Iterable[int]) -> str:
    numbers = [str(place) for place in places]
    return f"{_plural('request', len(numbers))} {', '.join(numbers)}"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _facts(name: str, run: Run, steps: list[BoardStep]) -> str:
    kinds = ", ".join(f"{run.tokens_of(kind)} {kind}" for kind in (PROMPT, RECOMPUTED, DECODE) if run.tokens_of(kind))
    most = max(step.num_held for step in steps)
    first = (
        f"{name}: {len(steps)} steps, {kinds}, at most {max(step.num_tokens for step in run.steps)} of {run.budget} "
        f"tokens in one; at most {most} of {steps[0].size.num_blocks} blocks held; "
        f"{run.num_preemptions} {_plural('preemption', run.num_preemptions)}"
    )
    lines = [f"  step {step.number}: {_gave_back(step.pool.given_back)}" for step in steps if step.pool.given_back]
    return "\n".join([first, *lines])
