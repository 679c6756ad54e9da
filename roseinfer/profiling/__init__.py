"""Measuring: spans in the code, traces of a few steps, exact counts, and the floor that no step can beat.

- span(name): label a part of a step
- capture(step) -> Trace: profile a few steps; tables and SQL over them
- count_ops(step), bytes_copied(step): exact facts of one step
- stage_ops(trace): the ops that a stage starts, alike on every device
- host_reads(step): how often the host waits for a number
- measure_machine(), decode_floor(...), prefill_floor(...): what this machine could do at best
"""

from .counting import MODEL_OPS, TRANSFERS, CopiedBytes, bytes_copied, count_ops, stage_ops, trace_once
from .floors import Floor, Machine, decode_floor, measure_machine, prefill_floor
from .host_reads import HostReads, host_reads
from .spans import span
from .traces.capture import capture
from .traces.trace import Trace

__all__ = [
    "MODEL_OPS",
    "TRANSFERS",
    "CopiedBytes",
    "Floor",
    "HostReads",
    "Machine",
    "Trace",
    "bytes_copied",
    "capture",
    "count_ops",
    "decode_floor",
    "host_reads",
    "measure_machine",
    "prefill_floor",
    "span",
    "stage_ops",
    "trace_once",
]
