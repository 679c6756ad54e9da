"""What checkers of a learner's own stage share: its tokens against the reference, and the ops of one step."""

from __future__ import annotations

from collections import Counter

from roseinfer.generate import begin, decode_step, generate
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..exercise import Wrong
from ..explain import explain_tokens

GATHER_SPAN = "roseinfer.decode_step_sessions.build_batched_past"
APPEND_SPAN = "roseinfer.kv.append_token"
LENGTHS = [5] * 4  # equal lengths: what a step then costs is easy to say
MIXED = [[7] * 3, list(range(1, 70)), [11, 12], [13]]


def require_tokens(stage_class: type[Stage], model: Model, max_tokens: int = 12) -> None:
    """Raises Wrong unless a mixed batch gives the reference's tokens."""
    if not (isinstance(stage_class, type) and issubclass(stage_class, Stage)):
        raise Wrong(f"expected a subclass of a stage, got {stage_class!r}")
    stage = stage_class(model, num_blocks=8)
    seqs = generate(stage, MIXED, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    for i, (seq, want) in enumerate(zip(seqs, reference_generate(model, MIXED, max_tokens), strict=True)):
        if message := explain_tokens(seq.output_ids, want):
            raise Wrong(f"prompt {i} of {len(MIXED)} (mixed lengths): {message}")


def step_ops(stage_class: type[Stage], model: Model, span: str) -> Counter[str]:
    """aten ops inside the first such span of one decode step, for LENGTHS."""
    stage = stage_class(model, num_blocks=8)
    seqs = begin(stage, [[3] * n for n in LENGTHS], SamplingParams())
    return count_ops(lambda: decode_step(stage, seqs), span=span)
