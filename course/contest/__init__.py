"""The contest: a fixed workload, a baseline, and a score for a learner's own entry.

- Policy, Draft, Settings, Stage: an entry is one class derived from one of these (see entry.py)
- read_entry(path) -> EntryFile
- Contest(workload).score(file) -> Score; raises Refused for an entry that breaks a rule
- read_board, write_board, draw_board: the scores so far
"""

from roseinfer.engine.policies import Policy
from roseinfer.stage import Stage

from .board import draw_board, read_board, recorded, require_free, write_board
from .contender import Limits
from .contest import Contest
from .entry import Draft, Settings
from .entry_file import EntryFile, read_entry
from .refused import Refused
from .score import Score, scoreboard
from .workload import WORKLOADS, Workload, workload_of

__all__ = [
    "Contest",
    "Draft",
    "EntryFile",
    "Limits",
    "Policy",
    "Refused",
    "Score",
    "Settings",
    "Stage",
    "WORKLOADS",
    "Workload",
    "draw_board",
    "read_board",
    "read_entry",
    "recorded",
    "require_free",
    "scoreboard",
    "workload_of",
    "write_board",
]
