"""race_texts: stages write the same text at the speed that they have on this machine, slowed down to be watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from tokenizers import Tokenizer

from course.display.vega import VegaPicture
from roseinfer.arguments import counted
from roseinfer.bench.contenders import StageContender
from roseinfer.bench.interleave import Run, interleaved
from roseinfer.bench.ladder import check_stages
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied, decode_floor
from roseinfer.stage import Stage

from .race_spec import Lane, race_spec

RUNS = 3


class TextRace(VegaPicture):
    """Animation of a text race. speeds: tokens per second of each stage's batch in its median run, with the prefill."""

    speeds: dict[str, float]


def race_texts(
    stages: Sequence[type[Stage]],
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    batch_size: int = 16,
    max_new_tokens: int = 48,
) -> TextRace:
    """Show the text of one of batch_size equal requests as each stage writes it, at its measured speed.

    Each stage runs once to warm up, then three times in turn; the median run is shown, slowed down so that the slowest
    stage takes about 8 seconds. Below a text: the batch's tokens so far, tokens per second of the whole run, and the
    bytes moved so far.
    Raises ValueError for a bad argument, and for a stage whose times mean nothing on this device.
    """
    check_stages(stages)
    for stage in stages:
        if reason := stage.why_untimed(model.device):
            raise ValueError(f"stages must be timed on {model.device}, {stage.name} cannot: {reason}")
    prompt_ids = tokenizer.encode(prompt).ids
    entrants = {stage.name: StageContender(stage, model, [prompt_ids] * batch_size, max_new_tokens) for stage in stages}
    samples = interleaved({name: _runner(entrant) for name, entrant in entrants.items()}, repeats=RUNS, warmup=1)
    runs = {name: sorted(own, key=_seconds)[RUNS // 2] for name, own in samples.items()}
    lanes = [
        Lane(name, _ends(runs[name]), _pieces(tokenizer, prompt_ids, runs[name].outputs[0]), *_sums(entrants[name]))
        for name in entrants
    ]
    outputs = [run.outputs for run in runs.values()]
    is_same = all(own == outputs[0] for own in outputs)
    text = (
        f"{', '.join(runs)}: {counted(batch_size, 'sequence')} from {prompt!r}, "
        f"{counted(max_new_tokens, 'new token')} each; same text: {is_same}"
    )
    first_done = min(lane.ends_ms[-1] for lane in lanes)
    race = TextRace(race_spec(lanes, prompt, batch_size, text), text, _told(lanes, batch_size), {"time": first_done})
    race.speeds = {name: run.tokens / _seconds(run) for name, run in runs.items()}
    return race


def _runner(entrant: StageContender) -> Callable[[], Run]:
    return lambda: entrant.run(lambda tokens, seconds: None)


def _seconds(run: Run) -> float:
    return run.prefill_seconds + sum(run.step_seconds)


def _ends(run: Run) -> list[float]:
    """Return when each token of a sequence is ready, in ms from the start of the prefill."""
    return [1e3 * end for end in accumulate((run.prefill_seconds, *run.step_seconds))]


def _pieces(tokenizer: Tokenizer, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[str]:
    """Return the text of each token; joined they are the whole text, even where a character has several tokens."""
    texts = [tokenizer.decode([*prompt_ids, *output_ids[:n]]) for n in range(len(output_ids) + 1)]
    return [after[len(before) :] for before, after in zip(texts, texts[1:], strict=False)]


def _sums(entrant: StageContender) -> tuple[list[int], list[int]]:
    """Sum up the bytes that are needed, and those that the stage copies, up to each token; leave out the prefill's."""
    stage, seqs = entrant.at_step(0)
    config, dtype = entrant.model.config, entrant.model.dtype
    needed, copied = [0], [0]
    for _ in range(entrant.params.most_tokens - 1):
        floor = decode_floor(config, [len(seq) for seq in seqs], dtype)
        own = bytes_copied(lambda: decode_step(stage, seqs))
        needed.append(floor.weight_bytes + floor.kv_bytes)
        copied.append(2 * own.copied + own.filled)
    return list(accumulate(needed)), list(accumulate(copied))


def _told(lanes: Sequence[Lane], batch_size: int) -> str:
    ends = [f"{lane.name} {lane.ends_ms[-1]:,.0f} ms" for lane in lanes]
    return f"the same text by {', '.join(ends)}, batch of {batch_size}"
