"""race_texts: the same text by each stage, at the pace that was measured."""

from __future__ import annotations

import pytest

from course import teach
from course.display.board import VEGA
from course.teach.lesson00.text_race import FRAME_MS, MOMENTS, Lane, race_frames
from roseinfer.models import load_model, load_tokenizer
from roseinfer.reference import reference_generate
from stages import NaiveCat, TritonPaged, VectorizedGather

PROMPT = "Return a new"
QUICK = Lane("quick", [10.0, 20.0, 30.0], [" a", "\n", "b"])
SLOW = Lane("slow", [40.0, 80.0, 120.0], [" a", "\n", "b"])


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def race(model):
    stages = [NaiveCat, VectorizedGather]
    return teach.race_texts(stages, model, load_tokenizer("tiny"), PROMPT, batch_size=2, max_new_tokens=5)


def test_the_text_has_exact_facts_alone(race):
    assert repr(race) == (
        "s01_naive_cat, s04_vectorized_gather: 2 sequences from 'Return a new', 5 new tokens each; same text: True"
    )
    bundle, metadata = race._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VEGA, "image/png"} and bundle["image/png"].startswith(b"\x89PNG")
    assert "ms" in metadata["image/png"]["alt"]


def test_both_write_the_models_text(race, model):
    tokenizer = load_tokenizer("tiny")
    ids = tokenizer.encode(PROMPT).ids
    [output] = reference_generate(model, [ids], max_tokens=5)
    for lane in (0, 1):
        assert [cell.text for cell in race.frames[0].panels[lane].cells] == [PROMPT]
        prompt, *pieces = (cell.text for cell in race.frames[MOMENTS].panels[lane].cells)
        whole = prompt + "".join(pieces).replace("␣", " ").replace("⏎", "\n")
        assert whole == tokenizer.decode([*ids, *output])


def test_the_slowest_takes_eight_seconds_and_the_still_is_at_the_first_end(race):
    frames = race_frames([QUICK, SLOW], "prompt", 16)
    assert len(frames) == MOMENTS + 1 and MOMENTS * FRAME_MS == 8000
    assert frames[10].heading == "30 of 120 ms, slowed down 66.7 times"
    assert [len(frames[10].panels[lane].cells) for lane in (0, 1)] == [4, 1]
    assert max(len(race.frames[race.shown].panels[lane].cells) for lane in (0, 1)) == 6


def test_the_speeds_of_a_still_are_those_of_whole_runs(race):
    """At the end of the fastest the others have hardly begun: their speed so far would be that of their prefill."""
    for frame in race_frames([QUICK, SLOW], "prompt", 16):
        assert frame.panels[1].title.endswith("whole run 400 tok/s, 120 ms")
    for lane, speed in enumerate(race.speeds.values()):
        assert all(f"; whole run {speed:,.0f} tok/s" in frame.panels[lane].title for frame in race.frames)


def test_what_cannot_race_is_refused(model):
    tokenizer = load_tokenizer("tiny")
    with pytest.raises(ValueError, match="stages must be a list of Stage classes, got"):
        teach.race_texts([], model, tokenizer, PROMPT)
    if TritonPaged.why_untimed(model.device):
        with pytest.raises(ValueError, match="stages must be timed on cpu, s07_triton_paged cannot: "):
            teach.race_texts([TritonPaged], model, tokenizer, PROMPT)
