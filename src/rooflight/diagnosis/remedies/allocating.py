"""Allocating: memory that is given back to the system and fetched again, page by page, in each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.records.account import Cause, Regime
from rooflight.records.quantity import Quantity, count_of, percent

FRESH: Final = Remedy(
    id="fresh-memory",
    title="memory is given back and fetched again",
    short="MALLOC_TOP_PAD_=4294967296 (environment)",
    rest="so that glibc keeps what is freed; or THP_MEM_ALLOC_ENABLE=1, for fewer and larger pages; jemalloc or "
    "tcmalloc by LD_PRELOAD; results written in place (add_, out=)",
    verify="minor page faults of a step are gone: /usr/bin/time -v",
    waste=False,
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


RULES: Final = (fresh_memory,)
