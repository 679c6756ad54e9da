"""What an entry returns is checked: one line in the course's words, and the line of the entry's file."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from course.contest.places import run_in_places
from course.contest.worker import described, loaded
from roseinfer.models import load_model

IDS = "draft must return a list of token ids from 0 to 2047, got "
PAIR = "must return a list with a token id from 0 to 2047 for each of the "


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


def draft(body: str, num_tokens: object = 4) -> str:
    return f"""
        from course.contest import Draft

        class Mine(Draft):
            num_tokens = {num_tokens!r}

            def draft(self, token_ids, num_tokens):
                {body}
    """


def policy(key: str = "return 0", pick: str = "return 0") -> str:
    return f"""
        from course.contest import Policy

        class Mine(Policy):
            def key(self, seq):
                {key}

            def pick(self, waiting, room):
                {pick}
    """


def stage(method: str, body: str) -> str:
    return f"""
        from stages import BlockTable

        class Mine(BlockTable):
            def {method}(self, seqs):
                {body}
    """


def settings(settings: str, prepare: str = "return model") -> str:
    return f"""
        from course.contest import Settings

        class Mine(Settings):
            settings = {settings}

            def prepare(self, model):
                {prepare}
    """


BAD = {
    "an id outside": (draft("return [1, 5000]"), IDS + "[1, 5000], in line 7 of"),
    "a float": (draft("return [1.5]"), IDS + "[1.5], in line 7 of"),
    "True": (draft("return [True]"), IDS + "[True], in line 7 of"),
    "lists in a list": (draft("return [[1]]"), IDS + "[[1]], in line 7 of"),
    "a draft of none": (draft("return []", 0), "num_tokens must be an integer from 1 to 64, got 0, in line 4 of"),
    "no key": (policy(key="pass"), "got values of type NoneType, in line 5 of"),
    "keys of two kinds": (
        policy(key="return 'a' if seq.seq_id % 2 else 1"),
        "key must return values that can be compared, such as numbers, got values of type int, str, in line 5 of",
    ),
    "no pick": (policy(pick="pass"), "pick must return an index from 0 to 8, got None, in line 8 of"),
    "a pick before": (policy(pick="return -1"), "pick must return an index from 0 to 8, got -1, in line 8 of"),
    "a wrong setting": (settings("{'fast': True}"), "enforce_eager, async_scheduling, speculative, in line 4 of"),
    "more room than others": (
        settings("{'max_num_seqs': 64}"),
        "ValueError: max_num_seqs is the same for every entry: leave it out",
    ),
    "settings that are no dict": (
        settings("['fast']"),
        "settings must be a dict with the names of settings, got ['fast'], in line 4 of",
    ),
    "no model": (settings("{}", "pass"), "prepare must return a Model, got None, in line 7 of"),
    "no first tokens": (stage("first_tokens", "super().first_tokens(seqs)"), f"first_tokens {PAIR}1 sequences, got"),
    "a token outside": (stage("next_tokens", "return [5000] * len(seqs)"), f"next_tokens {PAIR}8 sequences, got [5000"),
    "too few tokens": (stage("next_tokens", "return super().next_tokens(seqs)[1:]"), f"next_tokens {PAIR}8 sequences"),
    "an error of its own": (policy(key="return seq.fast"), "no attribute 'fast', in line 6 of"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "line"), BAD.values(), ids=list(BAD))
def test_a_bad_answer_is_refused_with_its_line(source, line, entry_of, model):
    file = entry_of(dedent(source))
    made, said = loaded(file, model)
    if made:
        with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever it is: the line that describes it counts
            list(run_in_places(made, [(4, 6)] * 9, lambda ended, begun: [[1, 2, 3, 4] for _ in begun]))
        said = {"failed": described(raised.value, file)}
    assert line in said["failed"] and said["failed"].endswith("my_entry.py") and "\n" not in said["failed"]


@pytest.mark.parametrize("body", ["import numpy as np; return np.array([1, 2])", "return (1, 2)", "return [1] * 99"])
def test_any_list_of_token_ids_is_a_draft(body, entry_of, model):
    made, _ = loaded(entry_of(dedent(draft(body))), model)
    runs = list(run_in_places(made, [(4, 3)] * 2, lambda ended, begun: [[1, 2, 3, 4] for _ in begun]))
    assert [len(seq.output_ids) for seq in runs[-1].values()] in ([3], [3, 3])


INTEGERS = {
    "an array": "BlockTable: np.array(super().next_tokens(seqs))",
    "NumPy's integers": "BlockTable: [np.int64(token) for token in super().next_tokens(seqs)]",
    "a tensor": "BlockTable: torch.tensor(super().next_tokens(seqs))",
    "an array, in a queue of the stage": "TokenBudget: np.array(super().next_tokens(seqs))",
}


@pytest.mark.parametrize("returned", INTEGERS.values(), ids=list(INTEGERS))
def test_a_stage_may_return_integers_of_any_kind(returned, entry_of, model):
    base, expression = returned.split(": ", 1)
    source = stage("next_tokens", f"return {expression}").replace("BlockTable", base)
    made, _ = loaded(entry_of("import numpy as np, torch\n" + dedent(source)), model)
    sent = []

    def hand_over(ended, begun):
        sent.extend(json.loads(json.dumps(ended)))
        return [[1, 2, 3, 4] for _ in begun]

    list(run_in_places(made, [(4, 3)] * 2, hand_over))
    assert [len(tokens) for _, tokens in sent] == [3, 3]
