"""Whole batches at once: engines on the same weights and prompts, prefill to last token, in turn.

- offline(model, ...) -> OfflineResult: the race, with raw samples, floors and verdicts
- peak_memory(run): what the engine takes of memory, in a process of its own
"""

from .memory import MemoryRun, PeakMemory, peak_memory
from .race import CONTENDERS, PRECISIONS, offline
from .result import OfflineResult

__all__ = ["CONTENDERS", "PRECISIONS", "MemoryRun", "OfflineResult", "PeakMemory", "offline", "peak_memory"]
