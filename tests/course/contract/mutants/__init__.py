"""Wrong stages: what the contract has to catch, and by which promise. A file for each kind of mistake."""

from __future__ import annotations

from roseinfer.stage import Stage

from .books import MUTANTS as BOOKS
from .choosers import MUTANTS as CHOOSERS
from .failures import MUTANTS as FAILURES
from .memories import MUTANTS as MEMORIES
from .mutant import Mutant
from .operators import MUTANTS as OPERATORS
from .queues import MUTANTS as QUEUES
from .sharing import MUTANTS as SHARING
from .steps import MUTANTS as STEPS
from .wrong_beyond import MUTANTS as WRONG_BEYOND

MUTANTS: tuple[Mutant, ...] = (*OPERATORS, *WRONG_BEYOND, *BOOKS, *MEMORIES, *FAILURES, *CHOOSERS, *STEPS)
QUEUE_MUTANTS: tuple[Mutant, ...] = (*QUEUES, *SHARING)


def mutant_of(name: str) -> type[Stage]:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    return mutant.make()
