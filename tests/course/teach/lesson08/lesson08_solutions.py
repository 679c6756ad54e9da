"""The classes of lesson 08's draft and solutions, as its notebook makes them; and another right room."""

from __future__ import annotations

import nbformat
import torch
import torch.nn.functional as F

from course.teach.exercises.solutions import parse_solutions
from roseinfer.paths import ROOT
from roseinfer.stage import Stage

SOLUTIONS = ROOT / "notebooks/solutions/08_your_own_stage.py"
NOTEBOOK = ROOT / "notebooks/08_your_own_stage.ipynb"
names = {"torch": torch, "F": F, "Stage": Stage, "__name__": __name__}
for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
    if cell.source.startswith(("class DraftStep", "class Draft(")):
        exec(cell.source, names)
for source in parse_solutions(SOLUTIONS.read_text(encoding="utf-8")).values():
    exec(source, names)
Room, Contiguous, MyStep, Mine, Doubling, Draft, Repaired = (
    names[name] for name in ("Room", "Contiguous", "MyStep", "Mine", "Doubling", "Draft", "Repaired")
)


class OneTensor:
    """K and V in one tensor, tokens first, made on the first append."""

    def __init__(self, num_kv_heads, head_dim, dtype, device):
        self.kv_tokens = torch.empty(1, 2, num_kv_heads, head_dim, dtype=dtype, device=device)
        self.count = 0

    def append(self, k, v):
        needed, capacity = self.count + len(k), len(self.kv_tokens)
        while capacity < needed:
            capacity *= 2
        if capacity > len(self.kv_tokens):
            grown = self.kv_tokens.new_empty(capacity, *self.kv_tokens.shape[1:])
            grown[: self.count] = self.kv_tokens[: self.count]
            self.kv_tokens = grown
        self.kv_tokens[self.count : needed, 0] = k
        self.kv_tokens[self.count : needed, 1] = v
        self.count = needed

    def kv(self):
        return list(self.kv_tokens[: self.count].permute(1, 2, 0, 3))
