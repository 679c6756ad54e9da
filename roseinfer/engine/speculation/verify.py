"""Verification: which tokens of a draft hold."""

from __future__ import annotations


def verified(draft: list[int], tokens: list[int]) -> list[int]:
    """Return the tokens that a step with a draft gives a sequence: from one to len(draft) + 1.

    tokens [len(draft) + 1]: tokens[i] is chosen by the model after draft[:i], greedily or at random, as it would be
    without a draft. As long as the draft has the token that was chosen, the next row follows the right text.

    So a draft decides how many tokens a step gives, and never which ones. It is the rejection sampling of Leviathan et
    al. (2023) and Chen et al. (2023) for a draft that has all its mass on one token d: d is accepted with its
    probability p(d) in the model; if it is rejected, another token x comes with p(x) / (1 - p(d)), which is what is
    left of the distribution. One draw from p does both: it is d with probability p(d), and given that it is not, it has
    the distribution of the rest.
    """
    num_right = 0
    while num_right < len(draft) and draft[num_right] == tokens[num_right]:
        num_right += 1
    return tokens[: num_right + 1]
