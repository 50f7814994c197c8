"""Lengths of sequences in the annotations that vLLM and SGLang put around a step.

``execute_context_2(70)_generation_3(3)``: two sequences whose 70 tokens are new, and three that generate one token
each. Some builds add to the queries q of each sequence, and its keys k (those of its q included), sums of squares:
``(70_2900)`` are the sums of q and of q², ``(sq70sk90sqsq2900sqsk3800)`` those of q, k, q² and q k.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_STEP: Final = re.compile(r"^execute_.*?context_(\d+)\(([^()]*)\)_generation_(\d+)\(([^()]*)\)")
_NAMED: Final = re.compile(r"(sqsq|sqsk|sq|sk)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLengths:
    """The sequences of a step: their tokens, and the least keys and visible pairs that they can have, which are all
    that they have if ``exact``.
    """

    sequences: int
    tokens: int
    keys: int
    pairs: int
    exact: bool

    def __add__(self, other: StepLengths) -> StepLengths:
        return StepLengths(
            sequences=self.sequences + other.sequences,
            tokens=self.tokens + other.tokens,
            keys=self.keys + other.keys,
            pairs=self.pairs + other.pairs,
            exact=self.exact and other.exact,
        )


NO_SEQUENCES: Final = StepLengths(sequences=0, tokens=0, keys=0, pairs=0, exact=True)


def step_lengths(annotations: Iterable[str], tokens: int) -> StepLengths | None:
    """The sequences of a call with so many tokens, by the first annotation that tells lengths: all of the step, or
    those that are new, or those that generate, if one kind alone has so many. A call may have more, which are padding.
    None where nothing tells them.
    """
    for name in annotations:
        if match := _STEP.match(name):
            new, generating = _part(int(match[1]), match[2]), _part(int(match[3]), match[4])
            if new is None or generating is None:
                return None
            if tokens >= new.tokens + generating.tokens:
                return new + generating
            fitting = [part for part in (new, generating) if part.tokens == tokens]
            return fitting[0] if len(fitting) == 1 else None
    return None


def step_tokens(annotations: Iterable[str]) -> int | None:
    """All tokens of a step, by the first annotation that tells lengths; None where none does."""
    for name in annotations:
        if match := _STEP.match(name):
            new, generating = _part(int(match[1]), match[2]), _part(int(match[3]), match[4])
            return None if new is None or generating is None else new.tokens + generating.tokens
    return None


def _part(sequences: int, text: str) -> StepLengths | None:
    """The sequences of one kind, None if the text does not tell how many tokens they have."""
    sums = {name: int(value) for name, value in _NAMED.findall(text)}
    if not sums:
        found = re.fullmatch(r"(\d+)(?:_(\d+))?", text)
        if not found:
            return None
        sums = {"sq": int(found[1])} | ({"sqsq": int(found[2])} if found[2] else {})
    if "sq" not in sums:
        return None
    tokens = sums["sq"]
    if not sequences or not tokens:
        return NO_SEQUENCES
    # query i of a sequence sees all keys but those of the q - 1 - i queries after it: q k - q (q - 1) / 2 pairs
    if "sqsq" in sums:
        pairs = max(sums["sqsq"], sums.get("sqsk", 0)) - (sums["sqsq"] - tokens) // 2
    else:  # q <= k, so the pairs are at least q (k + 1) / 2; equal lengths have the least squares
        pairs = (max(sums.get("sqsk", 0), tokens * tokens // sequences) + tokens) // 2
    exact = sums.keys() >= {"sk", "sqsq", "sqsk"}
    keys = max(tokens, sums.get("sk", 0))
    return StepLengths(sequences=sequences, tokens=tokens, keys=keys, pairs=pairs, exact=exact)


def in_window(lengths: StepLengths, window: int) -> StepLengths:
    """The least keys and pairs that are left where a query sees no more than ``window`` keys, its own included.

    With unknown keys before them, n sequences of T tokens have at least the pairs of n sequences of T / n tokens that
    have no others; a sequence of all keys has min(window, its keys).
    """
    if lengths.sequences == 0:
        return lengths
    mean = lengths.tokens // lengths.sequences
    short = min(mean, window)
    each = short * (short + 1) // 2 + (mean - short) * window
    if lengths.sequences == 1 and lengths.exact:
        before = lengths.keys - lengths.tokens  # keys that were in the cache
        each = sum_of_clamped(before + 1, lengths.tokens, window)
        keys = min(lengths.keys, lengths.tokens + window - 1)
        return StepLengths(sequences=1, tokens=lengths.tokens, keys=keys, pairs=each, exact=True)
    return StepLengths(
        sequences=lengths.sequences,
        tokens=lengths.tokens,
        keys=lengths.tokens,
        pairs=max(lengths.tokens, lengths.sequences * each),
        exact=False,
    )


def sum_of_clamped(first: int, count: int, top: int) -> int:
    """The sum of min(first + i, top) over i in [0, count)."""
    rising = max(0, min(count, top - first))
    return rising * first + rising * (rising - 1) // 2 + (count - rising) * top
