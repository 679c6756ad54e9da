"""A contest that takes little time, an entry of each kind, and a score that no run gave."""

from __future__ import annotations

from course.contest import Limits
from course.contest.score import Score, score_row
from course.contest.workload import Length, Workload

SMALL = Workload("small", "", (Length("plain", 12, 6), Length("repeating", 20, 6), Length("shared", 70, 4)))
LIMITS = Limits(run_seconds=4.0, memory_bytes=1 << 30)

KINDS = {
    "Policy": "class Mine(Policy):\n    name = 'mine'\n    def key(self, seq):\n        return -seq.max_len\n",
    "Draft": "class Mine(Draft):\n    def draft(self, token_ids, num_tokens):\n        return token_ids[:num_tokens]\n",
    "Settings": "class Mine(Settings):\n    settings = {'scheduling_policy': 'longest_output'}\n",
    "Stage": "from stages import BlockTable\nclass Mine(BlockTable):\n    pass\n",
}
IMPORTS = "from course.contest import Draft, Policy, Settings, Stage\n"


def score_of(name: str, speed: float) -> Score:
    row = score_row(name, "Policy", [1.0, 1.1], [1 / speed, 1.1 / speed])
    arguments = {"workload": "mixed", "requests": 24, "tokens": 660, "repeats": 2, "file": "a.py", "sha256": "0"}
    where = {"host": {}, "device": "a CPU", "versions": {"torch": "2"}, "commit": None}
    return Score(arguments=arguments, rows=[row], samples=[], **where)
