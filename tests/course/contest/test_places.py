"""Eight sequences at a time: the judge hands over no ninth prompt, whatever an entry sets."""

from __future__ import annotations

import pytest

from course.contest import Draft, Policy, Refused, Settings
from course.contest.entry import make_engine
from course.contest.handed_over import HandedOver
from course.contest.places import PLACES, run_in_places
from course.contest.workload import Length, Workload
from roseinfer.models import load_model
from roseinfer.reference import reference_generate
from stages import BlockTable, Speculative, TokenBudget

MANY = Workload("many", "", tuple(Length("plain", 6 + n, 2 + n % 3) for n in range(20)))


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


def wide(stage: type) -> type:
    class Wide(stage):
        def __init__(self, model, **room):
            super().__init__(model, **{**room, "max_num_seqs": 64, "num_blocks": 400})

    return Wide


class HiddenBatch(TokenBudget):
    """Runs all that it is given before it returns from a step."""

    def step(self):
        while self.has_work:
            done = super().step()
        return done


class Shortest(Policy):
    name = "shortest"

    def key(self, seq):
        return len(seq)


class Last(Draft):
    def draft(self, token_ids, num_tokens):
        return token_ids[-num_tokens:]


class Cached(Settings):
    settings = {"enable_prefix_caching": True}


ENTRIES = {
    "the baseline": None,
    "a policy": Shortest,
    "a draft": Last,
    "settings": Cached,
    "a stage without a queue": BlockTable,
    "the same with places of its own": wide(BlockTable),
    "a stage with a queue": TokenBudget,
    "the same with more places": wide(TokenBudget),
    "drafts in a stage": wide(Speculative),
    "a hidden batch": wide(HiddenBatch),
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
@pytest.mark.slow
def test_it_gets_eight_prompts_at_a_time_and_gives_all_tokens(entry, model):
    requests = MANY.draw(3)
    places, most = HandedOver(requests), []

    def hand_over(ended, begun):
        prompts = places.answer({"ended": [list(one) for one in ended], "begun": begun})
        most.append(len(places.running))
        return prompts

    for running in run_in_places(
        make_engine(entry, model), [(len(r.prompt), r.max_tokens) for r in requests], hand_over
    ):
        assert len(running) <= PLACES
    assert max(most) == PLACES == 8 and places.all_ended
    prompts = [request.prompt for request in requests]
    longest = reference_generate(model, prompts, 4)
    assert places.tokens_in_order() == [own[: r.max_tokens] for own, r in zip(longest, requests, strict=True)]


OUT_OF_TURN = {
    "a ninth": ([], list(range(9)), "it asks for 9 requests at a time, allowed: 8"),
    "one twice": ([], [3, 3], "it names request 3 out of turn"),
    "one that is not there": ([], [20], "it names request 20 out of turn"),
    "True": ([], [True], "it names request True out of turn"),
    "an end before the beginning": ([[3, [1]]], [], "it names request 3 out of turn"),
    "no lists": ({}, 3, "where its tokens are read"),
}


@pytest.mark.parametrize(("ended", "begun", "line"), OUT_OF_TURN.values(), ids=list(OUT_OF_TURN))
def test_what_is_out_of_turn_is_refused(ended, begun, line):
    with pytest.raises(Refused, match=line):
        HandedOver(MANY.draw(1)).answer({"ended": ended, "begun": begun})


def test_a_place_is_free_when_its_request_has_ended():
    requests = MANY.draw(1)
    places = HandedOver(requests)
    assert places.answer({"ended": [], "begun": [2, 5]}) == [requests[2].prompt, requests[5].prompt]
    assert places.answer({"ended": [[2, [7, 7]]], "begun": list(range(6, 13))}) == [r.prompt for r in requests[6:13]]
    assert not places.all_ended and places.tokens == {2: [7, 7]}
    with pytest.raises(Refused, match="it names request 2 out of turn"):
        places.answer({"ended": [[2, [7, 7]]], "begun": []})
