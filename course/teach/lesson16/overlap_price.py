"""say_overlap_price: why overlap gains or loses on this machine, from the host's and the device's own times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ..views.said import Said, say
from .step_lanes import COMMIT, DEVICE, HOST, PLAN, Lanes


def say_overlap_price(seconds: Mapping[str, Sequence[float]], lanes: Lanes) -> Said:
    """Say what overlap costs or gains, from two stages that ran the same work in alternation.

    seconds: of each stage's runs, the one without overlap first. lanes: a run of the one with it, by the wall clock.

    Raises ValueError unless there are two stages, and the run is by the wall clock.
    """
    if len(seconds) != 2 or lanes.is_model:
        raise ValueError(
            f"seconds must be of two stages and lanes by the wall clock, got {list(seconds)} and {lanes.name}"
        )
    steps = len(lanes.sizes)
    (before, old), (after, new) = ((name, 1e3 * median(own) / steps) for name, own in seconds.items())
    host, device = lanes.busy(HOST) / steps, lanes.busy(DEVICE) / steps
    plan, commit = (sum(s.end - s.begin for s in lanes.spans if s.what == what) / steps for what in (PLAN, COMMIT))
    more = f"{abs(new - old):.2f} ms {'more' if new > old else 'less'}"
    gain = (host + device) / max(host, device)
    hidden = host + device - lanes.end / steps
    shown = "follow one another, so nothing is hidden" if hidden <= 0 else f"overlap by {hidden:.2f} ms"
    return say(
        f"what a step of {after} takes beside one of {before}",
        f"A step of {before} takes {old:.2f} ms, one of {after} {new:.2f} ms: {more}.",
        f"In one more run of {after}, {host:.2f} ms of a step are the host's ({plan:.2f} to plan and launch, "
        f"{commit:.2f} to commit), and {device:.2f} ms are computation. There they "
        f"{shown}. Overlap also adds work: a second set of buffers, and placeholders to replace.",
        f"With a device of that speed beside the host, overlap would gain at most ×{gain:.2f} over taking turns.",
    )
