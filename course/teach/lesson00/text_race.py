"""race_texts: stages write the same text at the speed that they have on this machine, slowed down to be watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil

from tokenizers import Tokenizer

from course.display.board import Board, Cell, Frame, Panel, flow
from roseinfer.arguments import counted
from roseinfer.bench.contenders import StageContender
from roseinfer.bench.interleave import Run, interleaved
from roseinfer.bench.ladder import check_stages
from roseinfer.display.figure import PALETTE
from roseinfer.models import Model
from roseinfer.stage import Stage

RUNS = 3
MOMENTS, FRAME_MS = 40, 200  # frames of the race, and how long one is shown: 8 s in all
WRITTEN = Cell(0, 0, "new tokens", PALETTE[0])
PROMPT = Cell(0, 0, "prompt", PALETTE[1])


class TextRace(Board):
    """Animation of a text race. speeds: tokens per second of each stage's batch in its median run, with the prefill."""

    speeds: dict[str, float]


@dataclass(frozen=True)
class Lane:
    """One stage's run: when each token of a sequence is ready, and its text."""

    name: str
    ends_ms: list[float]
    pieces: list[str]


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
    stage takes about 8 seconds. Above a text: the batch's tokens so far, and tokens per second of the whole run.
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
    lanes = [Lane(name, _ends(run), _pieces(tokenizer, prompt_ids, run.outputs[0])) for name, run in runs.items()]
    outputs = [run.outputs for run in runs.values()]
    is_same = all(own == outputs[0] for own in outputs)
    text = (
        f"{', '.join(runs)}: {counted(batch_size, 'sequence')} from {prompt!r}, "
        f"{counted(max_new_tokens, 'new token')} each; same text: {is_same}"
    )
    ends = [lane.ends_ms[-1] for lane in lanes]
    race = TextRace(
        race_frames(lanes, prompt, batch_size),
        text,
        label="moment",
        shown=ceil(MOMENTS * min(ends) / max(ends)),
        legend=(PROMPT, WRITTEN),
        frame_ms=FRAME_MS,
        alt=_told(lanes, batch_size),
    )
    race.speeds = {name: run.tokens / _seconds(run) for name, run in runs.items()}
    return race


def race_frames(lanes: Sequence[Lane], prompt: str, batch_size: int) -> list[Frame]:
    """Draw the moments of the slowest stage's run: what each stage has written by then."""
    last = max(lane.ends_ms[-1] for lane in lanes)
    slower = MOMENTS * FRAME_MS / last
    speed = f"slowed down {slower:,.1f} times" if slower >= 1 else f"{1 / slower:,.1f} times as fast as measured"
    moments = [last * moment / MOMENTS for moment in range(MOMENTS + 1)]
    return [
        Frame(
            [_panel(lane, now, prompt, batch_size) for lane in lanes],
            f"{now:,.0f} of {last:,.0f} ms, {speed}",
        )
        for now in moments
    ]


def _panel(lane: Lane, now: float, prompt: str, batch_size: int) -> Panel:
    """Show a lane's text. The speed is that of the whole run: few tokens have waited for a prefill."""
    made, length = sum(end <= now for end in lane.ends_ms), len(lane.ends_ms)
    shown = [piece.replace("\n", "⏎").replace(" ", "␣") for piece in lane.pieces]
    text = flow([replace(PROMPT, text=prompt), *(replace(WRITTEN, text=piece) for piece in shown)])
    speed = f"{1e3 * batch_size * length / lane.ends_ms[-1]:,.0f} tok/s, {lane.ends_ms[-1]:,.0f} ms"
    title = f"{lane.name}: {made * batch_size:,} of {length * batch_size:,} tokens; whole run {speed}"
    return replace(text, cells=text.cells[: 1 + made], title=title)


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


def _told(lanes: Sequence[Lane], batch_size: int) -> str:
    ends = [f"{lane.name} {lane.ends_ms[-1]:,.0f} ms" for lane in lanes]
    return f"the same text by {', '.join(ends)}, batch of {batch_size}"
