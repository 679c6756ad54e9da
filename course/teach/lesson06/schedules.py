"""run_schedule: real requests that come and go on a stage with block tables, and what one of them reads and says."""

from __future__ import annotations

from typing import Any

from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.reference import reference_generate
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

PROMPTS = {"A": list(range(30, 70)), "B": [7, 8, 9], "C": [11, 12, 13]}
MORE = 8  # steps that A decodes at the end


def run_schedule(stage_class: type[Stage], model: Model, schedule: str) -> dict[str, Any]:
    """Run a schedule such as "ABA": A comes, B comes, A leaves; after each, all that hold blocks decode a token.

    At the end A decodes on. Returns its blocks, its row of the table, and how its tokens compare with the reference.
    Raises ValueError for letters other than A, B and C, and unless A holds blocks at the end.
    """
    if not set(schedule) <= set(PROMPTS) or not schedule.count("A") % 2:
        raise ValueError(f"schedule must be letters of {''.join(PROMPTS)}, A an odd number of times, got {schedule!r}")
    stage: Any = stage_class(model, num_blocks=4, block_size=32)
    requests = {name: Sequence(list(prompt), SamplingParams(max_tokens=16)) for name, prompt in PROMPTS.items()}
    for name in schedule:
        seq = requests[name]
        if stage.holds(seq):
            stage.free(seq)
        else:
            seq.append(sample(stage.prefill(seq)[None], [seq])[0])
        decode_step(stage, [seq for seq in requests.values() if stage.holds(seq)])
    seq = requests["A"]
    for _ in range(MORE):
        decode_step(stage, [seq])
    blocks = list(stage.tables.of(seq.seq_id, 0))
    [right] = reference_generate(model, [PROMPTS["A"]], len(seq.output_ids))
    wrong = [i for i, (token, other) in enumerate(zip(seq.output_ids, right, strict=True)) if token != other]
    return {
        "stage": stage.name,
        "A's blocks": blocks,
        "A's row": stage.tables_of(stage.host_buffer, [seq])[0, 0, : len(blocks)].tolist(),
        "A's tokens": f"wrong from token {wrong[0]} of {len(right)}" if wrong else "equal to the reference",
    }
