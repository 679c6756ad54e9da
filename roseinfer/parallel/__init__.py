"""Tensor parallel: one model split over several processes, each with its part of every layer.

- split.py: which part of each weight a rank has
- group.py: the sum over all ranks, and how long it takes
- ranks.py: rank 0 starts the other ranks, tells them what to compute, and ends them
- rank.py: what such a process runs
- runner.py: the engine's runner, with the forward on all ranks
"""
