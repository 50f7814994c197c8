"""The theory of speculative decoding: how many tokens a round yields, and how much faster that is than plain decoding.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (2023), sections 3.1 to 3.5. In a
*round* a draft proposes ``gamma`` tokens, one pass of the target accepts a prefix of them, and adds one token of its
own. Nothing here measures: a profiler's results put measured times into these formulas, and so may anybody.
"""

from __future__ import annotations


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens that a round yields on average: (1 - a^(gamma + 1)) / (1 - a), the equation (1) of Leviathan et al.

    ``acceptance`` is a, the probability that a draft token is accepted if those before it were, taken to be the same
    for all. It counts tokens that were *tested*: not the share of all proposed ones, of which those after the first
    rejection are never tested. Between 1 (nothing accepted) and ``gamma`` + 1. Raises ValueError outside of 0 to 1,
    and for a negative ``gamma``.
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance {acceptance}: give a probability from 0 to 1")
    if gamma < 0:
        raise ValueError(f"gamma {gamma}: give a number of draft tokens from 0 on")
    return sum(acceptance**tokens for tokens in range(gamma + 1))  # the same, and right at 1 and close to it


def predicted_speedup(
    tokens_per_round: float, *, plain_s: float, draft_s: float, verify_s: float, overhead_s: float = 0.0
) -> float:
    """Tokens per second of speculative decoding, over those of plain decoding: E * plain / (draft + verify + overhead).

    ``tokens_per_round`` is E (``expected_tokens``). ``plain_s``: a step of plain decoding, which yields one token per
    sequence. Of a round: ``draft_s``, all passes of the draft; ``verify_s``, the target's pass over gamma + 1 tokens;
    ``overhead_s``, what else is in it, such as sampling. All are of the same batch, so that a batch needs no factor.

    Theorem 3.8 of Leviathan et al. is the case ``draft_s = gamma * c * plain_s``, ``verify_s = plain_s``,
    ``overhead_s = 0``: the target takes as long for gamma + 1 tokens as for one, as where reading its weights takes all
    the time. Raises ValueError for negative times and for a round that takes no time.
    """
    times = (tokens_per_round, plain_s, draft_s, verify_s, overhead_s)
    if not all(each >= 0 for each in times):  # NaN too
        raise ValueError(f"tokens and seconds {times}: give numbers from 0 on")
    round_s = draft_s + verify_s + overhead_s
    if not round_s:
        raise ValueError("a round that takes no time: give the time of the draft's or the target's passes")
    return tokens_per_round * plain_s / round_s
