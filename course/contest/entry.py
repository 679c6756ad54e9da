"""Entry: what a file hands in. It is one class of four kinds; here is how each runs the requests of a contest.

    class MyPolicy(Policy)      the order of the queue: `key` or `pick`, as in lesson 17
    class MyDraft(Draft)        tokens that may follow a text: `draft`, as in lesson 19
    class MySettings(Settings)  settings of the engine, and the layout of its weights, as in lesson 12
    class MyStage(Stage)        a step of your own, as in lessons 08 to 19

A policy and a draft change one thing of the baseline, which is the engine with everything else switched off. Settings
may switch all of it on. A stage replaces the engine. Every entry gets at most eight requests at a time: see places.py.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from roseinfer.arguments import require_count
from roseinfer.engine.engine import Engine
from roseinfer.engine.policies import Policy
from roseinfer.engine.speculation.settings import NGRAM
from roseinfer.models import Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .bad_answer import BadAnswer, as_token_ids
from .places import PLACES

MOST_DRAFTED = 64  # tokens of one draft

# What every entry has to work with.
ROOM: Mapping[str, Any] = {"num_blocks": 96, "block_size": 16, "max_num_seqs": PLACES}
BASELINE: Mapping[str, Any] = {"scheduling_policy": "fcfs", "enable_prefix_caching": False, "enforce_eager": True}


class Draft:
    """Speculative decoding with your own draft. num_tokens: the most tokens of one draft.

    Every step drafts, whether it pays or not. `draft` decides that: it may return fewer tokens, or none.
    """

    num_tokens: ClassVar[int] = 4

    def draft(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """Return tokens that may follow the text token_ids, at most num_tokens of them."""
        raise NotImplementedError


class Settings:
    """Fields of EngineConfig, as a dict, except those of ROOM; a field that is left out is as in the baseline."""

    settings: ClassVar[dict[str, Any]] = {}

    def prepare(self, model: Model) -> Model:
        """Return the model that the engine runs, which must choose the same tokens."""
        return model


def engine_of(model: Model, **changes: Any) -> Engine:
    """Make the baseline's engine with these settings changed.

    Raises ValueError as EngineConfig does, and for a setting of ROOM.
    """
    if fixed := ROOM.keys() & changes.keys():
        raise ValueError(f"{min(fixed)} is the same for every entry: leave it out")
    return Engine(model, **{**BASELINE, **changes, **ROOM})


def policy_engine(policy: type[Policy], model: Model) -> Engine:
    return engine_of(model, scheduling_policy=policy())


def settings_engine(entry: type[Settings], model: Model) -> Engine:
    made = entry()
    if not isinstance(made.settings, Mapping) or not all(isinstance(name, str) for name in made.settings):
        raise ValueError(f"settings must be a dict with the names of settings, got {made.settings!r:.100}")
    prepared = made.prepare(model)
    if not isinstance(prepared, Model):
        raise BadAnswer(made.prepare, f"must return a Model, got {prepared!r:.100}")
    return engine_of(prepared, **made.settings)


def drafting_engine(draft: type[Draft], model: Model) -> Engine:
    """Make the baseline's engine with that draft in every step."""
    made = draft()
    require_count("num_tokens", made.num_tokens, at_least=1, at_most=MOST_DRAFTED)
    engine = engine_of(model, speculative={"method": NGRAM, "num_tokens": made.num_tokens})  # makes room for so many
    assert engine.speculation is not None, "it was asked for"
    engine.speculation.proposer = OwnProposer(made, model.config.vocab_size)
    engine.speculation.payoff = AlwaysWorth()  # type: ignore[assignment]
    return engine


def stage_of(stage_class: type[Stage], model: Model) -> Stage:
    return stage_class(model, **ROOM)


class OwnProposer:
    """Adapts a Draft to the engine, which asks first how many tokens each sequence could get, then for the tokens."""

    def __init__(self, draft: Draft, vocab_size: int) -> None:
        self.own, self.vocab_size = draft, vocab_size
        self.drafts: dict[int, list[int]] = {}  # by sequence, for the step that is being made

    def warm_up(self) -> None:
        """Do nothing: there is nothing to make ready."""

    def wishes(self, seqs: abc.Sequence[Sequence]) -> list[int]:
        most = self.own.num_tokens
        self.drafts = {seq.seq_id: self._checked(self.own.draft(list(seq.token_ids), most))[:most] for seq in seqs}
        return [len(self.drafts[seq.seq_id]) for seq in seqs]

    def propose(self, seqs: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[list[int]]:
        return [self.drafts[seq.seq_id][:n] for seq, n in zip(seqs, most, strict=True)]

    def _checked(self, draft: object) -> list[int]:
        """Return the draft's token ids. Raises BadAnswer for ids that the model could not look up."""
        tokens = as_token_ids(draft, self.vocab_size)
        if tokens is None:
            wanted = f"must return a list of token ids from 0 to {self.vocab_size - 1}"
            raise BadAnswer(self.own.draft, f"{wanted}, got {draft!r:.100}")
        return tokens


class AlwaysWorth:
    """Replaces the engine's Payoff, which decides by the clock, so that every run has the same number of steps."""

    def is_worth(self, num_seqs: int, num_drafts: int) -> bool:
        return True

    def observe(self, num_seqs: int, num_drafted: int, num_accepted: int, seconds: float) -> None:
        """Measure nothing."""


KINDS: dict[type, Callable[[Any, Model], Engine | Stage]] = {
    Policy: policy_engine,
    Draft: drafting_engine,
    Settings: settings_engine,
    Stage: stage_of,
}


class NoEntry(ValueError):
    """Raised for a file that does not have exactly one entry."""


def kind_of(entry: type) -> type:
    """Return the class's kind: Policy, Draft, Settings or Stage. Raises NoEntry for another class."""
    for kind in KINDS:
        if issubclass(entry, kind) and entry is not kind:
            return kind
    raise NoEntry(f"{entry.__name__} is no entry: derive it from {names_of_kinds()}")


def names_of_kinds() -> str:
    *others, last = (kind.__name__ for kind in KINDS)
    return f"{', '.join(others)} or {last}"


def make_engine(entry: type | None, model: Model) -> Engine | Stage:
    """Make a warm engine or stage that runs requests with the entry's class; None for the baseline."""
    made = engine_of(model) if entry is None else KINDS[kind_of(entry)](entry, model)
    if isinstance(made, Engine):
        made.warm_up()
    return made
