"""Whole batches at once: engines on the same weights and prompts, prefill to last token, in turn.

- offline(setting) -> OfflineResult: the race, with raw samples, floors and verdicts
- peak_memory(setting): what the engine takes of memory, in a process of its own
"""

from .memory import PeakMemory, peak_memory
from .race import offline
from .result import OfflineResult

__all__ = ["OfflineResult", "PeakMemory", "offline", "peak_memory"]
