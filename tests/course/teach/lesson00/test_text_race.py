"""race_texts: the same text by each stage, at the pace that was measured, with the bytes that it took."""

from __future__ import annotations

import pytest

from course import teach
from course.display.grid import VEGA
from course.display.shapes import CHAR
from course.teach.lesson00.race_spec import LANE, PAD, Lane, race_spec
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


def table(spec, name):
    [found] = [table["values"] for table in spec["data"] if table["name"] == name]
    return found


def lane_of(spec, name, lane):
    """Rows of the left or the right lane."""
    return [row for row in table(spec, name) if (row["x"] > LANE) == bool(lane)]


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
        prompt, *pieces = lane_of(race.spec, "texts", lane)
        assert prompt["text"] == PROMPT and prompt["when"] == 0
        whole = PROMPT + "".join(piece["text"] for piece in pieces).replace("␣", " ").replace("⏎", "\n")
        assert whole == tokenizer.decode([*ids, *output])
        times = [piece["when"] for piece in pieces]
        assert times == sorted(times) and times[0] > 0


def test_bytes_are_those_of_every_decode_step(race, model):
    """Four steps after the prefill; the needed bytes are the floor's, the copied ones depend on the stage."""
    needed = sum(
        floor.weight_bytes + floor.kv_bytes
        for length in range(4, 8)
        for floor in [decode_floor(model.config, [length] * 2, model.dtype)]
    )
    last = [lane_of(race.spec, "states", lane)[-1] for lane in (0, 1)]
    assert all(state["bytes"].startswith(f"{needed / 1e6:,.0f} MB of weights and cache read") for state in last)
    assert last[0]["needed"] == last[1]["needed"] > 0 and last[0]["copied"] != last[1]["copied"]


def test_the_slowest_takes_eight_seconds_and_the_still_is_at_the_first_end():
    spec = race_spec([QUICK, SLOW], "prompt", 16, "text")
    play, time = spec["signals"]
    assert play["bind"]["input"] == "checkbox" and time["bind"]["max"] == 120
    assert "min(time + 1, 120)" in time["on"][1]["update"]  # whole ms: 120 ticks of 50 ms
    assert "slowed down 50.0 times" in [row["text"] for row in table(spec, "legend")]


def test_the_meters_are_on_one_scale_and_their_rows_follow_each_other():
    spec = race_spec([QUICK, SLOW], "prompt", 16, "text")
    quick, slow = (lane_of(spec, "states", lane) for lane in (0, 1))
    assert [(row["when"], row["until"]) for row in quick][:3] == [(0, 10), (10, 20), (20, 30)]
    full = LANE - 2 * PAD
    assert (
        [row["made"] for row in quick]
        == [row["made"] for row in slow]
        == [0, *(round(n * full / 3, 1) for n in (1, 2, 3))]
    )
    assert slow[-1]["needed"] + slow[-1]["copied"] == pytest.approx(full, abs=0.2)
    assert quick[-1]["tokens"] == "48 of 48 tokens; whole run 1,600 tok/s, 30 ms"


def test_the_speeds_of_a_still_are_those_of_whole_runs(race):
    """At the end of the fastest the others have hardly begun: their speed so far would be that of their prefill."""
    spec = race_spec([QUICK, SLOW], "prompt", 16, "text")
    shown = {row["tokens"].partition("; ")[2] for row in lane_of(spec, "states", 1)}
    assert shown == {"whole run 400 tok/s, 120 ms"}
    for lane, speed in enumerate(race.speeds.values()):
        assert all(f"; whole run {speed:,.0f} tok/s" in row["tokens"] for row in lane_of(race.spec, "states", lane))


def test_the_longest_sentence_fits_its_lane():
    long = Lane("long", [1.0 * n for n in range(1, 1000)], [" a"] * 999, [10**9] * 999, [10**9] * 999)
    for row in table(race_spec([long], "prompt", 64, "text"), "states"):
        assert max(len(row["tokens"]), len(row["bytes"])) * 11 * CHAR <= LANE - 2 * PAD


def test_a_text_stays_in_its_lane_and_a_third_lane_goes_below():
    long = Lane("long", [1.0 * n for n in range(1, 60)], [" token"] * 59, [0] * 58 + [1], [0] * 59)
    spec = race_spec([long, QUICK, SLOW], "prompt", 1, "text")
    assert all(row["x"] + row["width"] <= LANE for row in lane_of(spec, "texts", 0))
    boxes = table(spec, "boxes")
    assert boxes[2]["x"] == boxes[0]["x"] and boxes[2]["y"] > boxes[1]["y"] and spec["height"] > 2 * boxes[2]["y"]


def test_what_cannot_race_is_refused(model):
    tokenizer = load_tokenizer("tiny")
    with pytest.raises(ValueError, match="stages must be a list of Stage classes, got"):
        teach.race_texts([], model, tokenizer, PROMPT)
    if TritonPaged.why_untimed(model.device):
        with pytest.raises(ValueError, match="stages must be timed on cpu, s07_triton_paged cannot: "):
            teach.race_texts([TritonPaged], model, tokenizer, PROMPT)
