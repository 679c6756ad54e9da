"""Plan: what is sent, and when; the same for the same seed, whatever the server."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from roseinfer.arguments import require_count
from roseinfer.arrivals import Range, poisson

MALFORMED = (b"{", b'{"prompt": 3}', b'{"prompt": "a", "max_tokens": 0}', b'{"prompt": "a", "max_tokns": 4}', b"\xff")


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that is sent `seconds` after the start.

    gone_after: seconds after which its client closes the connection, None for a client that stays. malformed: a body
    that no server accepts, sent in place of the request.
    """

    seconds: float
    prompt: list[int]
    max_tokens: int
    gone_after: float | None = None
    malformed: bytes | None = None


def plan_of(
    rate: float,
    seconds: float,
    *,
    vocab_size: int,
    prompt_lens: Range,
    output_lens: Range,
    cancelled: float = 0.0,
    malformed: float = 0.0,
    seed: int = 0,
) -> list[Planned]:
    """Plan rate * seconds requests, a Poisson process of `rate` a second, with prompts of random token ids.

    cancelled: the share of them whose client goes away at a random moment of the first second. malformed: the share
    whose body is wrong. Raises ValueError for a bad value.
    """
    for name, share in (("cancelled", cancelled), ("malformed", malformed)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be a share from 0 to 1, got {share!r}")
    require_count("vocab_size", vocab_size, at_least=2)
    arrivals = poisson(max(1, round(rate * seconds)), rate, prompt_lens=prompt_lens, output_lens=output_lens, seed=seed)
    rng = Random(seed + 1)
    plan = []
    for arrival in arrivals:
        prompt = [rng.randrange(vocab_size) for _ in range(arrival.prompt_len)]
        fate = rng.random()
        plan.append(
            Planned(
                arrival.seconds,
                prompt,
                arrival.output_len,
                gone_after=rng.random() if fate < cancelled else None,
                malformed=rng.choice(MALFORMED) if cancelled <= fate < cancelled + malformed else None,
            )
        )
    return plan
