"""verify: whether the answers are those of the same model offline."""

from __future__ import annotations

from collections.abc import Sequence

from roseinfer.arguments import counted
from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams

from ..token_check import TokensDiffer
from .client import COMPLETE, Outcome
from .plan import Planned

SHOWN = 60  # characters of a text


def verify(spec: str, plan: Sequence[Planned], outcomes: Sequence[Outcome]) -> str:
    """Say how many complete answers were compared. Raises TokensDiffer for the first with another text than offline."""
    complete = [(sent, one) for sent, one in zip(plan, outcomes, strict=True) if one.how == COMPLETE]
    llm = LLM(spec)
    params = [SamplingParams(max_tokens=sent.max_tokens, ignore_eos=True) for sent, _ in complete]
    wanted = llm.generate([sent.prompt for sent, _ in complete], params, use_tqdm=False) if complete else []
    for number, ((_, one), output) in enumerate(zip(complete, wanted, strict=True)):
        if one.text != output.outputs[0].text:
            theirs, ours = one.text[:SHOWN], output.outputs[0].text[:SHOWN]
            raise TokensDiffer(f"complete answer {number} has the text {theirs!r}, and {spec} offline {ours!r}")
    return f"all {counted(len(complete), 'complete answer', 'has/have')} the text of {spec} offline"
