"""race_texts: the same text by each stage, at the pace that was measured, with the bytes that it took."""

from __future__ import annotations

import pytest

from course import teach
from course.display.board import VEGA
from course.teach.lesson00.text_race import FRAME_MS, MOMENTS, Lane, race_frames
from roseinfer.models import load_model, load_tokenizer
from roseinfer.profiling import decode_floor
from roseinfer.reference import reference_generate
from stages import NaiveCat, TritonPaged, VectorizedGather

PROMPT = "Return a new"
QUICK = Lane("quick", [10.0, 20.0, 30.0], [" a", "\n", "b"], [0, 100, 200], [0, 0, 0])
SLOW = Lane("slow", [40.0, 80.0, 120.0], [" a", "\n", "b"], [0, 100, 200], [0, 50, 120])


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def race(model):
    stages = [NaiveCat, VectorizedGather]
    return teach.race_texts(stages, model, load_tokenizer("tiny"), PROMPT, batch_size=2, max_new_tokens=5)


def lane_of(frame, lane):
    """Panels of a lane: its text, and its bytes."""
    return frame.panels[2 * lane : 2 * lane + 2]


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
        assert [cell.text for cell in lane_of(race.frames[0], lane)[0].cells] == [PROMPT]
        prompt, *pieces = (cell.text for cell in lane_of(race.frames[MOMENTS], lane)[0].cells)
        whole = prompt + "".join(pieces).replace("␣", " ").replace("⏎", "\n")
        assert whole == tokenizer.decode([*ids, *output])


def test_bytes_are_those_of_every_decode_step(race, model):
    """Four steps after the prefill; the needed bytes are the floor's, the copied ones depend on the stage."""
    needed = sum(
        floor.weight_bytes + floor.kv_bytes
        for length in range(4, 8)
        for floor in [decode_floor(model.config, [length] * 2, model.dtype)]
    )
    meters = [lane_of(race.frames[MOMENTS], lane)[1] for lane in (0, 1)]
    assert all(one.title.startswith(f"{needed / 1e6:,.0f} MB of weights and cache read") for one in meters)
    (read, copied), (other_read, other_copied) = (one.cells for one in meters)
    assert read.width == other_read.width > 0 and copied.width != other_copied.width


def test_the_slowest_takes_eight_seconds_and_the_still_is_at_the_first_end(race):
    frames = race_frames([QUICK, SLOW], "prompt", 16)
    assert len(frames) == MOMENTS + 1 and MOMENTS * FRAME_MS == 8000
    assert frames[10].heading == "30 of 120 ms, slowed down 66.7 times"
    assert [len(lane_of(frames[10], lane)[0].cells) for lane in (0, 1)] == [4, 1]
    assert max(len(lane_of(race.frames[race.shown], lane)[0].cells) for lane in (0, 1)) == 6


def test_the_meters_are_on_one_scale_and_their_parts_follow_each_other():
    quick, slow = (lane_of(race_frames([QUICK, SLOW], "prompt", 16)[-1], lane) for lane in (0, 1))
    assert [cell.column + cell.width for cell in slow[1].cells] == [pytest.approx(200 / 320), 1]
    assert quick[1].cells[0].width == slow[1].cells[0].width
    assert quick[0].title == "quick: 48 of 48 tokens; whole run 1,600 tok/s, 30 ms"


def test_the_speeds_of_a_still_are_those_of_whole_runs(race):
    """At the end of the fastest the others have hardly begun: their speed so far would be that of their prefill."""
    for frame in race_frames([QUICK, SLOW], "prompt", 16):
        assert lane_of(frame, 1)[0].title.endswith("whole run 400 tok/s, 120 ms")
    for lane, speed in enumerate(race.speeds.values()):
        assert all(f"; whole run {speed:,.0f} tok/s" in lane_of(frame, lane)[0].title for frame in race.frames)


def test_what_cannot_race_is_refused(model):
    tokenizer = load_tokenizer("tiny")
    with pytest.raises(ValueError, match="stages must be a list of Stage classes, got"):
        teach.race_texts([], model, tokenizer, PROMPT)
    if TritonPaged.why_untimed(model.device):
        with pytest.raises(ValueError, match="stages must be timed on cpu, s07_triton_paged cannot: "):
            teach.race_texts([TritonPaged], model, tokenizer, PROMPT)
