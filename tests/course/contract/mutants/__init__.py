"""Wrong stages: what the contract has to catch, and by which promise. A file for each kind of mistake."""

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
