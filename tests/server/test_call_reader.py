"""CallReader: the calls are the same however their text is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.tool_calls import CallReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab{}[]"\\ é\n', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["copy", "move-2", "a.b"]), ARGUMENTS), max_size=3)


def written(calls) -> str:
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls], ensure_ascii=False)


def joined(deltas) -> list[tuple[str, str]]:
    """(name, arguments) of each call, as a client adds them up."""
    calls = {}
    for delta in deltas:
        if "id" in delta:
            assert delta["index"] == len(calls) and delta["type"] == "function"
            calls[delta["index"]] = [delta["function"]["name"], ""]
        calls[delta["index"]][1] += delta["function"]["arguments"]
    return list(map(tuple, calls.values()))


@pytest.mark.slow
@given(CALLS, st.lists(st.integers(0, 400), max_size=8))
def test_calls_are_read_from_pieces(calls, cuts):
    text, reader, deltas = written(calls), CallReader(), []
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in zip(places, places[1:], strict=False):
        new = reader.read(text[begin:end])
        assert len({delta["index"] for delta in new}) == len(new), "one of each call"
        deltas += new
    wanted = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    assert joined(deltas) == wanted and reader.num_calls == len(calls)


def test_a_text_that_is_cut_off_has_what_is_there():
    reader = CallReader()
    text = '{"name": "copy", "arguments": {"path": "a}'
    assert joined(reader.read(text)) == [("copy", '{"path": "a}')]
    assert CallReader().read('{"name": "copy", "argu') == []
