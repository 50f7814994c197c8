"""Hot spots: the lines at which most of the time is that no rule has a remedy for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts
from rooflight.records.account import WORDS, Cause
from rooflight.records.measurement import Float64
from rooflight.records.session import Int64
from rooflight.roofline.findings import HotSpot
from rooflight.roofline.groups import plain_name

LEAST: Final = 0.1
"""A smaller share of an iteration is no hot spot."""
_MOST: Final = 3
_LOOP: Final = 16  # calls
_SMALL_S: Final = 4e-5
_NEAR: Final = 0.4  # of its bound: what does no more than it must is shortened by doing less
_FEWER: Final = "one op for the whole loop: on blocks, or on all at once; torch.compile where it is sequential"
_LESS: Final = "less of it: only what is read, once, on fewer or smaller operands"
_FASTER: Final = "another op, layout or dtype: or a form without large intermediate tensors"
_OF_OPS: Final = (Cause.SLOW_KERNELS, Cause.FUSION, Cause.UNBOUNDED, Cause.COMMUNICATION, Cause.LAUNCHES)
_READERS: Final = {
    "aten::_local_scalar_dense": "an .item()",
    "aten::item": "an .item()",
    "aten::slice": "a slice",
    "aten::select": "an index",
    "aten::index": "an index",
    "aten::masked_select": "a mask",
    "aten::where": "a mask",
}


def hot_spots(facts: Facts, drafts: Sequence[Draft]) -> tuple[HotSpot, ...]:
    """Lines of the program and modules, ops where no line is known, and causes in no op, that take at least a tenth of
    an iteration beyond what their work needs, and of which there is no finding; the longest first.
    """
    found = [*_ops(facts, drafts), *_causes(facts, drafts)]
    return tuple(sorted(found, key=lambda spot: (not spot.where, -spot.seconds))[:_MOST])


def _ops(facts: Facts, drafts: Sequence[Draft]) -> Iterable[HotSpot]:
    of, account = facts.of, facts.of.analysis.account
    lost_s: Float64 = np.zeros(len(of.records))
    needs_s: Float64 = np.zeros(len(of.records))
    for each in account.pieces:
        if len(each.call):
            (lost_s if each.cause in _OF_OPS else needs_s)[each.call] += each.seconds
    for draft in drafts:
        lost_s[draft.touched] = 0.0
    groups, count = of.places_of()
    sums = np.bincount(groups, lost_s, count)
    for at in np.flatnonzero(sums > LEAST * account.wall_s).tolist():
        mine = np.flatnonzero((groups == at) & (lost_s > 0))
        yield HotSpot(
            what=of.names(mine, 2),
            seconds=float(sums[at]),
            share=float(sums[at]) / account.wall_s,
            needs_s=float(needs_s[mine].sum()),
            calls=len(mine),
            read_by=_readers(facts, mine),
            helps=_helps(facts, mine, float(needs_s[mine].sum())),
            causes=tuple(dict.fromkeys(cause for cause, _ in account.of_calls(mine) if cause in _OF_OPS)),
            where=of.where(mine),
        )


def _helps(facts: Facts, calls: Int64, needs_s: float) -> str:
    """What may help where no rule knows better, by what makes such calls slow."""
    of = facts.of
    took_s, host_s = (float(each[calls].sum()) for each in (of.seconds, of.host_s))
    if len(calls) >= _LOOP and took_s + host_s < _SMALL_S * len(calls):
        return _FEWER
    return _LESS if needs_s > _NEAR * took_s else _FASTER


def _causes(facts: Facts, drafts: Sequence[Draft]) -> Iterable[HotSpot]:
    account = facts.of.analysis.account
    # of calls the chief cause is mended: what else they have is in other calls too
    covered = {cause for draft in drafts for cause in draft.causes[: 1 if len(draft.calls) else None]}
    for row in account.rows:
        outside_s = account.outside(row.cause)
        known = not row.cause.is_work and row.cause not in (Cause.OTHER_PROGRAMS, Cause.PROFILER)
        if known and row.cause not in covered and outside_s > LEAST * account.wall_s:
            yield HotSpot(what=WORDS[row.cause], seconds=outside_s, share=outside_s / account.wall_s, needs_s=0.0,
                          calls=0, read_by="", helps="", causes=(row.cause,), where=row.where)  # fmt: skip


def _readers(facts: Facts, calls: Int64) -> str:
    """In words, which ops read what the longest of some calls writes; empty where that is not known."""
    of = facts.of
    if not facts.values.known:
        return ""
    longest = int(calls[np.argmax(of.seconds[calls])])
    readers = {reader for storage in of.writes[longest] for reader in of.readers[storage] if reader > longest}
    names = sorted({of.op(reader).name for reader in readers})
    return ", ".join(_READERS.get(name, plain_name(name)) for name in names[:2]) or "nobody"
