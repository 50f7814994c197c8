"""Speculative decoding: what a draft model proposed and the target accepted.

A *round* is one draft and its verification for one sequence: the draft proposes tokens, one pass of the target accepts
a prefix of them (a path, if it is a tree) and adds one token of its own, the *bonus* token. So a round yields the
accepted tokens plus one. A speculative step runs one round for each sequence of its batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from rooflight.inference.sums import Sums

MOST_POSITIONS: Final = 1024
"""The longest draft that is counted by position."""

_TOO_MANY: Final = 1 << 53  # from here on floats skip whole numbers


@dataclass(frozen=True, slots=True)
class Drafts:
    """The rounds of a step: per sequence the draft tokens proposed (all nodes of a tree), those accepted, and the depth
    of the draft (of a chain its length). False where they are not known.
    """

    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    depth: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.depth)


UNKNOWN_DRAFTS: Final = Drafts((), (), ())
"""Those of a step whose drafts cannot be."""


@dataclass(slots=True)
class RoundSums(Sums):
    """Counts over rounds. ``by_depth`` counts rounds by depth of the draft and tokens accepted of it, from which all
    statistics by position follow; it has at most 525,000 entries, however many rounds there are.
    """

    proposed: int = 0
    accepted: int = 0
    by_depth: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, drafts: Drafts) -> None:
        """The rounds of one more step."""
        self.proposed += sum(drafts.proposed)
        self.accepted += sum(drafts.accepted)
        self.by_depth.update(zip(drafts.depth, drafts.accepted, strict=True))

    @property
    def without_draft(self) -> int:
        """Rounds that proposed nothing."""
        return sum(count for (depth, _), count in self.by_depth.items() if not depth)

    @property
    def drafted(self) -> int:
        """Rounds that proposed something."""
        return sum(count for (depth, _), count in self.by_depth.items() if depth)

    @property
    def alpha(self) -> float | None:
        """The share of tested draft tokens that was accepted: the estimate with the greatest likelihood if all are
        accepted with the same probability. A round tests the tokens that it accepts, and the next if there is one.
        """
        tested = sum(min(accepted + 1, depth) * count for (depth, accepted), count in self.by_depth.items())
        return self.accepted / tested if tested else None

    def positions(self) -> tuple[Position, ...]:
        """By position from the first on."""
        ends = {"proposed": Counter[int](), "tested": Counter[int](), "accepted": Counter[int]()}
        for (depth, accepted), count in self.by_depth.items():
            ends["proposed"][depth] += count
            ends["tested"][min(depth, accepted + 1)] += count
            ends["accepted"][accepted] += count
        found: list[Position] = []
        rounds = dict.fromkeys(ends, 0)
        for position in range(max(ends["proposed"], default=0), 0, -1):
            for name, count_by_end in ends.items():
                rounds[name] += count_by_end[position]
            found.append(Position(**rounds))
        return tuple(reversed(found))

    def histogram(self, of: Literal["depth", "accepted"]) -> tuple[int, ...]:
        """How many rounds that proposed something had a depth, or accepted so many tokens, from 0 on."""
        found: Counter[int] = Counter()
        for (depth, accepted), count in self.by_depth.items():
            if depth:
                found[depth if of == "depth" else accepted] += count
        return tuple(found[number] for number in range(max(found, default=-1) + 1))


class Position(NamedTuple):
    """Rounds that proposed a position of the draft, that accepted all before it too, and that accepted it too."""

    proposed: int
    tested: int
    accepted: int


def drafts_of(proposed: Any, accepted: Any, depth: Any, *, batch: int | None) -> Drafts:
    """The rounds of a step of ``batch`` sequences: counts in a list, array or tensor, one per sequence, or numbers if
    there is one sequence. ``proposed`` and ``depth`` may be one number for all sequences; ``depth`` None: chains.

    Raises ValueError for counts that are negative or no whole numbers, for shapes that do not fit each other or the
    batch, for more tokens accepted than the draft is deep, and for drafts deeper than they have tokens or than 1024.
    """
    tokens = _counts("accepted", accepted)
    if isinstance(tokens, int):
        tokens = (tokens,)
        if batch is not None and batch > 1:
            raise ValueError(f"one number of draft tokens for a batch of {batch}: give one per sequence")
    if batch is not None and len(tokens) > batch:
        raise ValueError(f"draft tokens of {len(tokens)} sequences for a batch of {batch}: give one per sequence")
    nodes = _spread("proposed", _counts("proposed", proposed), len(tokens))
    levels = nodes if depth is None else _spread("depth", _counts("depth", depth), len(tokens))
    for each in zip(nodes, tokens, levels, strict=True):
        _check(*each)
    return Drafts(nodes, tokens, levels)


def _check(nodes: int, tokens: int, levels: int) -> None:
    """Raise ValueError for a round that cannot be."""
    if nodes < 0 or tokens < 0 or levels < 0:
        raise ValueError(f"{tokens} of {nodes} draft tokens accepted: give numbers from 0 on")
    if tokens > levels:
        what = f"{nodes} proposed" if levels == nodes else f"a depth of {levels}"
        raise ValueError(f"{tokens} draft tokens accepted of {what}: leave out the target's own token")
    if levels > nodes or (nodes and not levels):
        raise ValueError(f"a draft of {nodes} tokens with a depth of {levels}: give the length of its longest path")
    if levels > MOST_POSITIONS:
        raise ValueError(f"a draft of depth {levels}: up to {MOST_POSITIONS} are counted")


def _counts(name: str, counts: Any) -> int | tuple[int, ...]:
    """Counts as one number, or as one per sequence."""
    if type(counts) is int and abs(counts) < _TOO_MANY:
        return counts
    if type(counts) is list and counts and set(map(type, counts)) == {int} and max(map(abs, counts)) < _TOO_MANY:
        return tuple(counts)
    try:
        values = np.asarray(counts.tolist() if hasattr(counts, "tolist") else counts)
    except ValueError:  # lists of different lengths
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give a whole number per sequence") from None
    if values.ndim > 1:
        raise ValueError(f"{name} draft tokens of shape {values.shape}: give one per sequence, in one dimension")
    if values.dtype.kind not in "iuf" or not values.size:
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give a whole number per sequence")
    if not np.isfinite(values).all() or (values % 1).any() or (abs(values) >= _TOO_MANY).any():
        raise ValueError(f"{name}={str(counts)[:40]} draft tokens: give whole numbers")
    found = values.astype(np.int64).tolist()
    return tuple(found) if values.ndim else int(found)


def _spread(name: str, counts: int | tuple[int, ...], sequences: int) -> tuple[int, ...]:
    """One count per sequence."""
    if isinstance(counts, int):
        return (counts,) * sequences
    if len(counts) != sequences:
        raise ValueError(f"{name} draft tokens of {len(counts)} sequences, accepted ones of {sequences}")
    return counts
