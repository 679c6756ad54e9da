"""attention_ops and attention_launches: what one decode step starts for its attention, from a trace."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import Trace, span, trace_once
from roseinfer.stage import Stage

from ..measure.compare_shapes import sql
from ..measure.ready_batch import ready_batch

# The outermost operations: an einsum starts others inside, which depend on the version of PyTorch. Views are left out.
OPS_OF_ONE_ATTENTION = """
WITH attention AS (
  SELECT ts AS start, ts + dur AS stop FROM slice
  WHERE name = 'roseinfer.attention' AND cat = 'user_annotation'
  ORDER BY ts LIMIT 1
), op AS (
  SELECT id, name, ts, dur, ts + dur AS stop FROM slice, attention
  WHERE ts >= attention.start AND ts < attention.stop AND name LIKE 'aten::%'
)
SELECT name, COUNT(*) AS n, SUM(dur) / 1e3 AS total_us FROM op
WHERE NOT EXISTS (SELECT 1 FROM op AS around WHERE around.id < op.id AND op.ts < around.stop)
  AND name NOT IN ('aten::slice', 'aten::select', 'aten::unsqueeze', 'aten::view', 'aten::view_as',
                   'aten::expand_as', 'aten::to')
GROUP BY name ORDER BY n DESC, name
"""
LAUNCHED = "name IN ('triton.interpreter', 'paged_decode_kernel')"  # interpreted, or on a GPU


def attention_ops(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> Table:
    """Count the operations that compute in the attention of the first layer of a decode step, by name.

    The stage must define its attention as a static method, as the paged stages do.
    """
    return sql(_trace(_labelled(stage_class), model, prompt_lens), OPS_OF_ONE_ATTENTION)


def attention_launches(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> int:
    """Count the launches of the paged attention kernel in a decode step."""
    trace = _trace(stage_class, model, prompt_lens)
    return int(trace.sql(f"SELECT COUNT(*) AS n FROM slice WHERE {LAUNCHED}")["n"][0])


def _labelled(stage_class: type[Stage]) -> type[Stage]:
    """Put a span around the stage's attention."""
    attend = stage_class.attention  # type: ignore[attr-defined]  # the paged stages have it

    def attention(*arguments: object) -> object:
        with span("roseinfer.attention"):
            return attend(*arguments)

    return type(stage_class.__name__, (stage_class,), {"attention": staticmethod(attention)})


def _trace(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> Trace:
    stage, seqs = ready_batch(stage_class, model, prompt_lens)
    return trace_once(lambda: decode_step(stage, seqs))
