"""draw_growth: exact bytes of a sequence that grows, by the way its tensor grows."""

from __future__ import annotations

import pytest

from course import teach
from course.teach.lesson08.growth_picture import Room, grow_room

WAYS = {"exact fit": lambda c: c + 1, "16 more": lambda c: c + 16, "double": lambda c: 2 * c}


def test_a_full_tensor_is_copied_to_a_larger_one():
    assert grow_room(lambda c: 2 * c, 5, capacity=2) == [
        Room(1, 0, 2, 2),
        Room(2, 0, 2, 2),
        Room(3, 2, 4, 6),  # the old and the new tensor are both there
        Room(4, 2, 4, 4),
        Room(5, 6, 8, 12),
    ]


@pytest.mark.parametrize(
    ("way", "copied", "capacity"),
    [("exact fit", sum(range(16, 64)), 64), ("16 more", 16 + 32 + 48, 64), ("double", 16 + 32, 64)],
)
def test_what_each_way_copies(way, copied, capacity):
    last = grow_room(WAYS[way], 64)[-1]
    assert (last.copied, last.capacity) == (copied, capacity)


def test_the_text_has_all_bytes():
    assert repr(teach.draw_growth(WAYS, 1000, num_tokens=65)).splitlines() == [
        "65 tokens of 1,000 bytes, 65,000 bytes kept",
        "exact fit: 1,960,000 bytes copied, 65,000 held, at most 129,000 while a tensor grows",
        "16 more: 160,000 bytes copied, 80,000 held, at most 144,000 while a tensor grows",
        "double: 112,000 bytes copied, 128,000 held, at most 192,000 while a tensor grows",
    ]


def test_both_panels_draw_every_way():
    chart = teach.draw_growth(WAYS, 8, num_tokens=20)
    assert chart.png.startswith(b"\x89PNG")
    values = [data["values"] if isinstance(data, dict) else data for data in _data(chart.spec)]
    assert any(text.count("\n") == 1 + 3 * 20 for text in values)


def _data(spec):
    if isinstance(spec, dict):
        yield from ([spec["data"]] if "values" in spec.get("data", {}) else [])
        for value in spec.values():
            yield from _data(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _data(value)


@pytest.mark.parametrize(
    ("ways", "size", "tokens", "message"),
    [
        (WAYS, 0, 8, "bytes_per_token must be an integer of at least 1, got 0"),
        (WAYS, 8, True, "num_tokens must be an integer of at least 1, got True"),
        ({}, 8, 8, "ways must be 1 to 5 ways to grow, got 0"),
        ({"stays": lambda c: c}, 8, 20, "grow must give an integer above 16, got 16"),
    ],
)
def test_bad_arguments_are_named(ways, size, tokens, message):
    with pytest.raises(ValueError, match=message):
        teach.draw_growth(ways, size, num_tokens=tokens)
