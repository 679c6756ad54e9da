"""Promises that every stage keeps, as code that checks any stage class: the course's or one from a notebook cell.

The tests run these promises on all stages of the ladder, and `teach.contract` shows them as a report.
"""

from .promises.all_promises import PROMISES, QUEUE_PROMISES, Promise, promises_of
from .promises.blocks import bytes_held
from .run import Outcome, check_promises

__all__ = ["PROMISES", "QUEUE_PROMISES", "Outcome", "Promise", "bytes_held", "check_promises", "promises_of"]
