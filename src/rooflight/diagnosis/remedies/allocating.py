"""Allocating: memory that each step fetches from the system again, page by page, or that none gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import NO_CALLS, Draft, Facts, Remedy
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.roofline.memory.texts import growth_text

FRESH: Final = Remedy(
    id="fresh-memory",
    title="memory is given back and fetched again",
    short="MALLOC_TOP_PAD_=4294967296 (environment)",
    rest="so that glibc keeps what is freed; or THP_MEM_ALLOC_ENABLE=1, for fewer and larger pages; jemalloc or "
    "tcmalloc by LD_PRELOAD; results written in place (add_, out=)",
    verify="minor page faults of a step are gone: /usr/bin/time -v",
    waste=False,
)
GROWTH: Final = Remedy(
    id="memory-growth",
    title="memory grows from iteration to iteration",
    short="keep .item() or .detach() of it, or del it",
    rest="a tensor with gradients keeps the graph of its iteration; lists, closures and caches that live longer than "
    "one keep all that they were given",
    verify="rooflight run again: growth_bytes of its --json is 0",
)
_SPARED: Final = 0.9
_LEAST: Final = 0.15  # of an iteration: how often glibc gives little back depends on what ran before, and is no mistake


def fresh_memory(facts: Facts) -> Iterable[Draft]:
    """Pages that the system zeroes and gives in each step, since large results before them were freed."""
    of = facts.of
    if not of.on_cpu or not of.measured:
        return
    inside_s, outside_s = of.fetching_s, of.analysis.account.outside(Cause.ALLOCATOR)
    lost_s = float(inside_s.sum()) + outside_s
    if lost_s < _LEAST * of.whole_s:
        return
    calls = np.flatnonzero(inside_s)
    text = f"the system takes {Quantity(lost_s, 's')} of CPU time, {percent(lost_s / max(of.whole_s, 1e-12))}, to give "
    text += "results memory that is new to the program"
    text += f": in each step to {count_of(len(calls), 'op')}" if len(calls) else ""
    place = next(iter(of.where(calls, 1)), None) if outside_s < lost_s / 2 else None
    for each in facts.waiting(FRESH, (Cause.ALLOCATOR,), lost_s, _SPARED * lost_s, text, 0.5, place):
        yield replace(each, regime=Regime.MEMORY)


def growing(facts: Facts) -> Iterable[Draft]:
    """What an iteration leaves behind. It takes no time, until there is no memory left."""
    memory = facts.of.analysis.memory
    text = growth_text(memory, facts.of.analysis.device.name)
    if text:
        yield Draft(remedy=GROWTH, regime=Regime.MEMORY, evidence=text, lost_s=0.0, gain_s=0.0, low_s=0.0, high_s=0.0,
                    calls=NO_CALLS, place=memory.growth[0].owner.where)  # fmt: skip


RULES: Final = (fresh_memory, growing)
