"""Figures of a request while its sequence grows, apart from any engine."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from tokenizers_of_all_kinds import tokenizer_of

from roseinfer.llm.request import Request, Sample
from roseinfer.llm.vocabulary import Vocabulary
from roseinfer.sequence import Logprob, SamplingParams, Sequence

TOKENIZER = tokenizer_of("byte-level")
IDS = {letter: TOKENIZER.token_to_id(letter) for letter in "now"}
VOCABULARY = Vocabulary(TOKENIZER)


def request_for(**params) -> Request:
    seq = Sequence([IDS["w"]], SamplingParams(**params))
    return Request("7", "w", [Sample(seq, VOCABULARY.detokenizer(seq.token_ids, seq.params.stop), VOCABULARY)])


def grow(request: Request, letters: str, finish_reason: str | None = None) -> None:
    [sample] = request.samples
    for letter in letters:
        sample.seq.append(IDS[letter])
    sample.seq.finish_reason = finish_reason
    sample.read()


def said(request: Request) -> tuple:
    [completion] = request.output().outputs
    return completion.text, completion.finish_reason, completion.stop_reason


def test_a_request_that_runs_has_no_reason_yet():
    request = request_for()
    assert said(request) == ("", None, None)
    grow(request, "no")
    assert said(request) == ("no", None, None) and not request.output().finished


@pytest.mark.parametrize(
    ("params", "letters", "sequence_ends", "wanted"),
    [
        ({}, "now", "length", ("now", "length", None)),
        ({}, "now", "stop", ("no", "stop", None)),
        ({"stop_token_ids": [IDS["w"]]}, "now", "stop", ("no", "stop", IDS["w"])),
        ({"stop": "ow"}, "now", "stop", ("no", "stop", None)),
        ({"stop_token_ids": [IDS["w"]]}, "now", "length", ("now", "length", None)),
        ({"stop": "ow"}, "now", None, ("n", "stop", "ow")),
        ({"stop": "ow"}, "now", "length", ("n", "stop", "ow")),
        ({"stop": "owl"}, "now", "length", ("now", "length", None)),
        ({"stop": "o"}, "now", None, ("n", "stop", "o")),
        ({}, "no", "abort", ("no", "abort", None)),
    ],
)
def test_why_it_ended(params, letters, sequence_ends, wanted):
    request = request_for(**params)
    grow(request, letters, sequence_ends)
    assert said(request) == wanted and request.output().finished
    assert request.output().outputs[0].token_ids == [IDS[letter] for letter in letters]


def test_tokens_are_read_once_however_many_came():
    request = request_for()
    for letters in ("n", "", "ow", "no"):
        grow(request, letters)
    assert said(request)[0] == "nowno"


def test_an_output_is_a_snapshot():
    request = request_for(logprobs=0)
    request.samples[0].seq.logprobs.append({IDS["n"]: Logprob(-0.5, 1)})
    grow(request, "n")
    before = request.output()
    request.samples[0].seq.logprobs.append({IDS["o"]: Logprob(-0.25, 1), 3: Logprob(-1.0, 2)})
    grow(request, "o", "length")
    after = request.output()
    assert before.outputs[0].token_ids == [IDS["n"]] and before.outputs[0].logprobs == [
        {IDS["n"]: Logprob(-0.5, 1, "n")}
    ]
    assert (before.outputs[0].cumulative_logprob, after.outputs[0].cumulative_logprob) == (-0.5, -0.75)
    assert (after.request_id, after.prompt, after.prompt_token_ids) == ("7", "w", [IDS["w"]])
    with pytest.raises(FrozenInstanceError):
        after.finished = False
