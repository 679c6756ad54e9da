"""The check of a piece of a learner's own engine: the contract judges the file that is kept once it passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from course.own_engine import PIECES, assembled, keep, load, piece_of, source_of, without_the_course
from course.own_engine.pieces import BLOCKS, SCHEDULER

from .contract_check import require_contract
from .exercise import Checker, register
from .stage_checks import require_stage
from .wrong import Wrong

# What the engine asks of the attention of a block table: prompts, chunks and tokens of any mix.
OF_A_FLAT_BATCH = ("A batch of mixed lengths", "Block edges", "Shared KV heads", "Any budget")


def register_piece(exercise_id: str) -> None:
    """Register the check of an exercise whose answer is kept."""
    register(exercise_id, _checker(exercise_id))


def _checker(exercise_id: str) -> Checker:
    piece = piece_of(exercise_id)

    def check(answer: Any, replace: bool = False) -> Callable[[], str]:
        # 1. Run the cell as a file of its own: what it uses is imported or defined there.
        base = piece.course.__name__
        require_stage(answer, base)
        if not issubclass(answer, piece.course):
            raise Wrong(f"expected a subclass of {base}, got a subclass of {answer.__mro__[1].__name__}")
        try:
            source = source_of(answer)
            own = load(piece, source, f"<{piece.name}.py>")
        except ValueError as error:
            raise Wrong(f"{error}: the cell is kept as a file, so import or define in it all that it uses") from error
        if own.__name__ != answer.__name__:
            raise Wrong(f"the last class in the cell must be the answer, {answer.__name__}, got {own.__name__}")
        if missing := [name for name in piece.methods if name not in _written(own)]:
            raise Wrong(f"write {', '.join(missing)} too: what you do not write is the course's, and stays out")
        # 2. Try the contract on an engine of this piece and the course's other ones.
        alone = without_the_course(piece, own)
        if piece is BLOCKS:
            require_contract(alone)
            require_contract(assembled({piece.name: own}, module=own.__module__), OF_A_FLAT_BATCH)
        else:
            last = piece if piece is SCHEDULER else PIECES[-1]  # stage 15 admits in the scheduler's place
            require_contract(assembled({piece.name: alone}, last, own.__module__))
        return partial(keep, piece, source, replace)

    return check


def _written(answer: type) -> set[str]:
    """Return the names that the learner's classes define."""
    return {name for cls in answer.__mro__ if cls.__module__ == answer.__module__ for name in vars(cls)}
